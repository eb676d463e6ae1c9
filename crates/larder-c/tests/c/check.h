/* What the programs of these tests check with: they end at the first line that does not hold, and
 * say which. */
#ifndef LARDER_CHECK_H
#define LARDER_CHECK_H

#include <larder.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

#define CHECK(holds)                                                                              \
    do {                                                                                          \
        if (!(holds)) {                                                                           \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__,                \
                    __LINE__, #holds, larder_last_error());                                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#define OK(call) CHECK((call) == LARDER_OK)

/* The call fails with this status, and the last error has this word in it. */
#define FAILS(call, status, word)                                                                 \
    do {                                                                                          \
        CHECK((call) == (status));                                                                \
        CHECK(strstr(larder_last_error(), (word)) != NULL);                                       \
    } while (0)

#endif
