/*
 * Whether a transport was chosen for Open MPI: in the environment, which mpirun --mca sets too, or in a file
 * of parameters. A file that we cannot know of, because a variable names it, counts as a choice. Source: Open
 * MPI's FAQ, "How do I set the value of MCA parameters?"
 */
#include "base_impl.h"
#include "world_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const parameters[] = {"pml", "btl", "mtl"};

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* "pml = ob1" chooses; "pml = ^ucx" and "# pml = ob1" do not. */
static bool line_chooses(const char *line)
{
    line = skip_blanks(line);
    for (size_t i = 0; i < HVT_LEN(parameters); i++) {
        size_t n = strlen(parameters[i]);
        const char *p = skip_blanks(line + (strncmp(line, parameters[i], n) ? 0 : n));

        if (p == line || *p != '=')
            continue;
        p = skip_blanks(p + 1);
        return *p && (*p != '^' || (i == 0 && strstr(p, "ob1")));
    }
    return false;
}

static bool file_chooses(const char *path)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    bool chosen = false;

    if (!f)
        return false;
    while (!chosen && getline(&line, &room, f) >= 0)
        chosen = line_chooses(line);
    free(line);
    fclose(f);
    return chosen;
}

bool hvt__transport_chosen(char *(*get)(const char *name), const char *const *files)
{
    static const char *const variables[] = {"OMPI_MCA_pml",
                                            "OMPI_MCA_btl",
                                            "OMPI_MCA_mtl",
                                            "OMPI_MCA_mca_base_param_files",
                                            "OMPI_MCA_mca_param_files",
                                            "OMPI_MCA_mca_base_param_file_prefix"};

    for (size_t i = 0; i < HVT_LEN(variables); i++)
        if (get(variables[i]))
            return true;
    for (; *files; files++)
        if (file_chooses(*files))
            return true;
    return false;
}
