#include "kernels/device/emulator/context.h"

#include "kernels/device/emulator/sanitizers.h"

#if defined(SYMMOE_OWN_CONTEXT)

// Saves what a callee must preserve on the old stack and takes it from the new one.
extern "C" void symmoe_emulator_change_stack(void** old_stack, void* new_stack);
asm(R"(
.text
.p2align 4
.hidden symmoe_emulator_change_stack
.globl symmoe_emulator_change_stack
.type symmoe_emulator_change_stack, @function
symmoe_emulator_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size symmoe_emulator_change_stack, . - symmoe_emulator_change_stack
)");

namespace symmoe::emulator {

SYMMOE_BOOKKEEPING void Context::prepare(void* stack, size_t bytes, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  // From the end: a return address of null, where unwinders stop; the entry, which `ret` takes;
  // the registers. The end is a multiple of 16, so that the entry finds the stack as after a call.
  void** const end = reinterpret_cast<void**>(static_cast<char*>(stack) + bytes);
  void** place = end;
  *--place = nullptr;
  *--place = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--place = nullptr;
  stack_pointer_ = static_cast<void*>(place);
}

SYMMOE_BOOKKEEPING void Context::change(Context& from, Context& to) {
  symmoe_emulator_change_stack(&from.stack_pointer_, to.stack_pointer_);
}

}  // namespace symmoe::emulator

#else

namespace symmoe::emulator {

SYMMOE_BOOKKEEPING void Context::prepare(void* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

SYMMOE_BOOKKEEPING void Context::change(Context& from, Context& to) {
  swapcontext(&from.context_, &to.context_);
}

}  // namespace symmoe::emulator

#endif
