#pragma once

#include <cstdint>

namespace symmoe::host {

// What tests may order and ask of the back end, by the names of the table's functions.

// The nth call from now on fails with `status`; an empty name forgets all orders.
void order_failure(const char* function, int nth, int status);
// Throws Refusal if an order falls due with this call.
void meet_orders(const char* function);

void count_work(const char* function);
uint64_t work_count(const char* function);

}  // namespace symmoe::host
