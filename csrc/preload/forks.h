/*
 * What a fork does to the locks and the state of this library: the locks are taken before it and
 * given back after it; the child has then forgotten what was its parent's.
 */
#ifndef HR_FORKS_H
#define HR_FORKS_H

enum hr_fork { HR_BEFORE_FORK, HR_IN_PARENT, HR_IN_CHILD };

void hr_fork_watcher(enum hr_fork at);
void hr_fork_throttle(enum hr_fork at);
void hr_fork_context_memory(enum hr_fork at);
void hr_fork_context_table(enum hr_fork at);
void hr_fork_physical(enum hr_fork at);
void hr_fork_books(enum hr_fork at);
void hr_fork_pools(enum hr_fork at);
void hr_fork_charges(enum hr_fork at);
void hr_fork_session(enum hr_fork at);

#endif
