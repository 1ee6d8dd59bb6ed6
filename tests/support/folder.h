/*
 * folder.h - a folder of its own for the files of a test program.
 */
#ifndef HVT_FOLDER_H
#define HVT_FOLDER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static char folder[] = "/tmp/hvt-test-XXXXXX";

/* False: it could not be made, and was said. */
static inline bool folder_make(void)
{
    if (mkdtemp(folder))
        return true;
    perror(folder);
    return false;
}

/* With all that is in it. */
static inline bool folder_remove(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0;
}

/* The path of a file; four of them at a time. */
static inline const char *in_folder(const char *name)
{
    static char path[4][300];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

#endif /* HVT_FOLDER_H */
