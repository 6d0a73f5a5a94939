/*
What is needed soon is asked for now, so that it is in the cache when its turn comes.
*/
#ifndef EBBTIDE_AHEAD_H
#define EBBTIDE_AHEAD_H

enum { EBBTIDE_LINE = 64 };

/* Ask for some bytes, which need not be there at all. */
static inline void ebbtide_ask(const char *from, long nbytes) {
#if defined(__GNUC__)
    for (long done = 0; done < nbytes; done += EBBTIDE_LINE) __builtin_prefetch(from + done, 0, 2);
#endif
}

#endif
