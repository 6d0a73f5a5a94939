/*
Threads that wait for work, kept from run to run: to start one takes 50 to 100 us and five page faults, to wake it 5.

They belong to one machine, and end with it. A process that was forked starts its own.
*/
#ifndef EBBTIDE_WORKERS_H
#define EBBTIDE_WORKERS_H

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

/* A chain takes 200 KiB; NumPy's sums and BLAS a few more. */
enum { EBBTIDE_STACK = 1 << 20, EBBTIDE_MOST_THREADS = 256 };

/*
How often who has done its part looks whether the others have, or whether there is work again, before it sleeps: 0.1 to
0.2 ms, as a member or two of the others take, or what Python does between two runs. To be woken takes 50 us.
*/
enum { EBBTIDE_TURNS = 4000 };

static inline void ebbtide_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Do the part of the work that a thread has; the caller of `ebbtide_work` is number 0. */
typedef void (*ebbtide_task)(void *given, int number);

typedef struct ebbtide_workers ebbtide_workers;
typedef struct {
    ebbtide_workers *all;
    pthread_t handle;
    int number;
    unsigned long seen; /* the last turn that it has taken part in */
} ebbtide_worker;

struct ebbtide_workers {
    pthread_mutex_t busy; /* held by the caller that they work for */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t begun, done;
    pid_t process;
    int count, wanted, left, ended;
    unsigned long turn;
    ebbtide_task task;
    void *given;
    ebbtide_worker each[EBBTIDE_MOST_THREADS];
};

static void *ebbtide_wait_for_work(void *given) {
    ebbtide_worker *self = given;
    ebbtide_workers *all = self->all;
    pthread_mutex_lock(&all->lock);
    for (;;) {
        while (all->turn == self->seen && !all->ended) pthread_cond_wait(&all->begun, &all->lock);
        if (all->ended) break;
        self->seen = all->turn;
        if (self->number >= all->wanted) continue;
        pthread_mutex_unlock(&all->lock);
        all->task(all->given, self->number);
        pthread_mutex_lock(&all->lock);
        if (__atomic_sub_fetch(&all->left, 1, __ATOMIC_RELEASE) == 0) pthread_cond_signal(&all->done);
        pthread_mutex_unlock(&all->lock);
        for (int k = 0; k < EBBTIDE_TURNS && __atomic_load_n(&all->turn, __ATOMIC_ACQUIRE) == self->seen; k++)
            ebbtide_pause();
        pthread_mutex_lock(&all->lock);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

static void ebbtide_prepare(ebbtide_workers *all) {
    pthread_mutex_init(&all->busy, NULL);
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->begun, NULL);
    pthread_cond_init(&all->done, NULL);
    all->process = getpid();
    all->count = all->left = all->ended = 0;
    all->turn = 0;
}

/* Return room for threads, none of which is started; NULL if there is no memory. */
static inline ebbtide_workers *ebbtide_workers_new(void) {
    ebbtide_workers *all = calloc(1, sizeof(ebbtide_workers));
    if (all) ebbtide_prepare(all);
    return all;
}

/* Start threads until there are so many, or the system has no more. Signals are for the threads of Python. */
static inline void ebbtide_start(ebbtide_workers *all, int count) {
    pthread_attr_t attributes;
    sigset_t none, before;
    if (all->count >= count) return;
    sigfillset(&none);
    pthread_sigmask(SIG_SETMASK, &none, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, EBBTIDE_STACK);
    while (all->count < count) {
        ebbtide_worker *one = &all->each[all->count];
        one->all = all;
        one->number = all->count + 1;
        one->seen = all->turn;
        if (pthread_create(&one->handle, &attributes, ebbtide_wait_for_work, one)) break;
        all->count++;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/*
Do a task in some threads, this one included, and wait for all of them. Whoever comes while they work for somebody else
does it alone: a task has to be one that any number of threads can do.
*/
static inline void ebbtide_work(ebbtide_workers *all, int threads, ebbtide_task task, void *given) {
    if (all && all->process != getpid()) ebbtide_prepare(all); /* those of before the fork are not here */
    if (!all || threads == 1 || pthread_mutex_trylock(&all->busy)) {
        task(given, 0);
        return;
    }
    pthread_mutex_lock(&all->lock);
    ebbtide_start(all, threads - 1);
    all->wanted = all->count + 1 < threads ? all->count + 1 : threads;
    all->left = all->wanted - 1;
    all->task = task;
    all->given = given;
    __atomic_add_fetch(&all->turn, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&all->begun);
    pthread_mutex_unlock(&all->lock);
    task(given, 0);
    for (int k = 0; k < EBBTIDE_TURNS && __atomic_load_n(&all->left, __ATOMIC_ACQUIRE); k++) ebbtide_pause();
    pthread_mutex_lock(&all->lock);
    while (all->left) pthread_cond_wait(&all->done, &all->lock);
    pthread_mutex_unlock(&all->lock);
    pthread_mutex_unlock(&all->busy);
}

/* End the threads. */
static inline void ebbtide_workers_free(ebbtide_workers *all) {
    if (!all) return;
    if (all->process == getpid()) {
        pthread_mutex_lock(&all->lock);
        all->ended = 1;
        pthread_cond_broadcast(&all->begun);
        pthread_mutex_unlock(&all->lock);
        for (int k = 0; k < all->count; k++) pthread_join(all->each[k].handle, NULL);
    }
    free(all);
}

/*
Take some of the numbers below *end* that nobody has taken, a part of those that are left: then nobody has much to do
when the others are done. Returns the first one, and writes how many.
*/
static inline long ebbtide_take(long *next, long end, long parts, long *count) {
    long first = __atomic_load_n(next, __ATOMIC_RELAXED);
    do {
        *count = end - first > parts ? (end - first) / parts : first < end;
    } while (*count && !__atomic_compare_exchange_n(next, &first, first + *count, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return first;
}

#endif
