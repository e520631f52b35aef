// The bug: the row is added to its residual twice.

#include "kernels/device/epilogue_row.h"

#ifdef SYMMOE_PLANT
namespace symmoe::kernels::SYMMOE_PLATFORM {
template <typename Columns>
void take_twice(const EpilogueRows& rows, int64_t row, const Columns& columns,
                const Addends<Columns>& addends, float (&x)[Columns::kCount],
                EpilogueWork<Columns>& work) {
  float before[Columns::kCount];
  std::copy(x, x + Columns::kCount, before);
  take_sums(rows, row, columns, addends, before, work);
  take_sums(rows, row, columns, Addends<Columns>(rows, row, columns), x, work);
}
}  // namespace symmoe::kernels::SYMMOE_PLATFORM
#define take_sums take_twice
#endif

#include "finishing.h"

int main() { return finishing::run(); }
