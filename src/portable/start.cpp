/// Where a program begins that may run on a C library older than that of the machine it was linked on.
///
/// From 2.34 on, glibc's own crt1.o leaves the constructors of the program to the C library, and an
/// older library would not run them. This one hands over a function that does: a newer library takes it
/// for a program of before 2.34 and calls it, too.
///
/// Source: System V ABI for AMD64, 3.4.1 (the state at _start); glibc 2.34, csu/libc-start.c.

extern "C" {

void _init();  // of crti.o

using Constructor = void (*)(int, char**, char**);
extern const Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern const Constructor __init_array_end[] __attribute__((visibility("hidden")));

/// The version of stdio that the program uses.
extern const int _IO_stdin_used;
const int _IO_stdin_used = 0x20001;

__attribute__((visibility("hidden"), used)) void sftrun_run_constructors(int argc, char** argv,
                                                                         char** envp) {
  _init();
  for (const Constructor* at = __init_array_start; at != __init_array_end; ++at)
    (*at)(argc, argv, envp);
}

}  // extern "C"

// __libc_start_main(main, argc, argv, init, fini, rtld_fini, stack_end). The dynamic linker runs
// destructors, so that there is no fini.
asm(R"(
  .text
  .globl _start
  .type _start, @function
_start:
  .cfi_startproc
  .cfi_undefined rip
  endbr64
  xorl %ebp, %ebp
  movq %rdx, %r9
  popq %rsi
  movq %rsp, %rdx
  andq $-16, %rsp
  pushq %rax
  pushq %rsp
  xorl %r8d, %r8d
  leaq sftrun_run_constructors(%rip), %rcx
  movq main@GOTPCREL(%rip), %rdi
  call *__libc_start_main@GOTPCREL(%rip)
  hlt
  .cfi_endproc
  .size _start, .-_start
)");
