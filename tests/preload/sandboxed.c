/*
 * `sandboxed`: a program with a context, whose sandbox sends a signal for a system call that every
 * thread makes as it rests, and whose handler lets it go on.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <errno.h>
#include <ucontext.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int answers[2];

/* The wait of a thread of the library ends as if its time was over. */
static void answer(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    (void)number;
    (void)info;
#if defined(__x86_64__)
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -ETIMEDOUT;
#else
    ((ucontext_t *)context)->uc_mcontext.regs[0] = -ETIMEDOUT;
#endif
    if (write(answers[1], "", 1) != 1)
        _exit(1);
    errno = saved_errno;
}

/* For all threads, those of the library among them. */
static void enter_sandbox(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof rules / sizeof rules[0], rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
        perror("seccomp");
        exit(2);
    }
}

int main(void)
{
    CUcontext context;
    char one;
    const struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    if (pipe(answers) != 0 || sigaction(SIGSYS, &action, NULL) != 0)
        return 2;
    enter_sandbox();
    if (read(answers[0], &one, 1) != 1)
        return 1;
    _exit(0);
}
