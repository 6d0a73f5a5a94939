/*
 * Checksums that a thread takes beside another one, which says how far it may go.
 *
 * The other one copies the same bytes to the page cache: where both are at the same 2 MiB, these come from memory once.
 * The thread waits awake, but lets others have the processor: to wake it costs the other one time. So 32 MiB are
 * written at 0.92 to 1.0 of the speed without checksums; at 0.84 to 0.94 if it sleeps, and at 0.85 to 0.93 if it goes
 * ahead.
 */

#ifndef EBBTIDE_BESIDE_H
#define EBBTIDE_BESIDE_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "crc32c.h"

/* How long the thread waits awake, in nanoseconds: four times what a block of 2 MiB takes. */
#define EBBTIDE_AWAKE 1000000

typedef struct {
    size_t arrays;
    const unsigned char **starts;
    size_t *counts;
    uint32_t *checksums;
    int is_wide;
    atomic_size_t begun; /* bytes of all arrays together that may be read */
    atomic_int is_stopped, is_asleep;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t owner;
} beside_job;

static int beside_is_over(const struct timespec *begin) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) * 1000000000LL + (now.tv_nsec - begin->tv_nsec) > EBBTIDE_AWAKE;
}

/* Returns how many bytes may be read, more than a number of them; 0 if there will be no more. */
static size_t beside_wait(beside_job *job, size_t done) {
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (job->begun <= done && !job->is_stopped && !beside_is_over(&begin)) {
        sched_yield();
    }
    if (job->begun <= done) {
        pthread_mutex_lock(&job->lock);
        job->is_asleep = 1;
        while (job->begun <= done && !job->is_stopped) {
            pthread_cond_wait(&job->changed, &job->lock);
        }
        job->is_asleep = 0;
        pthread_mutex_unlock(&job->lock);
    }
    return job->is_stopped ? 0 : job->begun;
}

static void *beside_run(void *given) {
    beside_job *job = given;
    size_t before = 0;
    for (size_t k = 0; k < job->arrays; k++) {
        uint32_t checksum = 0;
        for (size_t done = 0; done < job->counts[k];) {
            const size_t begun = beside_wait(job, before + done);
            if (!begun) {
                return NULL;
            }
            const size_t end = begun - before < job->counts[k] ? begun - before : job->counts[k];
            checksum = crc32c_extend(checksum, job->starts[k] + done, end - done, job->is_wide);
            done = end;
        }
        job->checksums[k] = checksum;
        before += job->counts[k];
    }
    return NULL;
}

/* Starts the thread; returns an error number. Signals are for the threads of the interpreter. */
static int beside_start(beside_job *job) {
    sigset_t all, own;
    job->owner = getpid();
    job->begun = 0;
    job->is_stopped = job->is_asleep = 0;
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &own);
    const int error = pthread_create(&job->thread, NULL, beside_run, job);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    return error;
}

static void beside_wake(beside_job *job) {
    if (job->is_asleep) {
        pthread_mutex_lock(&job->lock);
        pthread_cond_signal(&job->changed);
        pthread_mutex_unlock(&job->lock);
    }
}

static void beside_begin(beside_job *job, size_t count) {
    job->begun += count;
    beside_wake(job);
}

/* Returns when the thread has ended: by itself, or as it is told to. In a forked process there is none. */
static void beside_end(beside_job *job, int is_stopped) {
    if (getpid() != job->owner) {
        return;
    }
    if (is_stopped) {
        job->is_stopped = 1;
        beside_wake(job);
    }
    pthread_join(job->thread, NULL);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->lock);
}

#endif
