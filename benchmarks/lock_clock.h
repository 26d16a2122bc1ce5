/* In place of testpoint.h: takes the time when the lock is taken and when it is given back. */
#define HR_TESTPOINT_H

void lock_is_taken(void);
void lock_is_given_back(void);

/* The compiler compares the names. */
#define IS_POINT(name, other) (__builtin_strcmp(name, other) == 0)
#define HR_POINT(name)                                                                             \
    do {                                                                                           \
        if (IS_POINT(#name, "LOCK_OWNER_STORED") || IS_POINT(#name, "LOCK_TAKEN_OVER") ||          \
            IS_POINT(#name, "RECOVER_OWNER_TAKEN"))                                                \
            lock_is_taken();                                                                       \
        if (IS_POINT(#name, "UNLOCK_SEM_POSTED"))                                                  \
            lock_is_given_back();                                                                  \
    } while (0)
