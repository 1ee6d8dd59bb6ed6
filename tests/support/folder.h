/* folder.h - a temporary folder for a test program's files. */
#ifndef HVT_FOLDER_H
#define HVT_FOLDER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static char folder[] = "/tmp/hvt-test-XXXXXX";

/* False, with a message, if it cannot be created. */
static inline bool folder_make(void)
{
    if (mkdtemp(folder))
        return true;
    perror(folder);
    return false;
}

/* Removes it with its contents. */
static inline bool folder_remove(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0;
}

/* The path of a file; valid until four more calls. */
static inline const char *in_folder(const char *name)
{
    static char path[4][300];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

#endif /* HVT_FOLDER_H */
