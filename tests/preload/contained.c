/*
 * Becomes another program behind a filter of system calls as container engines have by default:
 * `contained PROGRAM ARGUMENT...`. Of what such filters deny, the calls that a library like this
 * one might make; exit status 2 where no filter can be had.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DENY(number, error)                                                                        \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),                                             \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))

int main(int count, char **arguments)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(SYS_clone3, ENOSYS),
        DENY(SYS_ptrace, EPERM),
        DENY(SYS_process_vm_readv, EPERM),
        DENY(SYS_process_vm_writev, EPERM),
        DENY(SYS_process_madvise, EPERM),
        DENY(SYS_pidfd_getfd, EPERM),
        DENY(SYS_kcmp, EPERM),
        DENY(SYS_userfaultfd, EPERM),
        DENY(SYS_perf_event_open, EPERM),
        DENY(SYS_bpf, EPERM),
        DENY(SYS_unshare, EPERM),
        DENY(SYS_setns, EPERM),
        DENY(SYS_mount, EPERM),
        DENY(SYS_name_to_handle_at, EPERM),
        DENY(SYS_open_by_handle_at, EPERM),
        DENY(SYS_keyctl, EPERM),
        DENY(SYS_io_uring_setup, EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof rules / sizeof rules[0], rules};
    if (count < 2) {
        fprintf(stderr, "usage: contained PROGRAM ARGUMENT...\n");
        return 2;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        perror("seccomp");
        return 2;
    }
    execv(arguments[1], arguments + 1);
    perror(arguments[1]);
    return 127;
}
