/*
 * Finds out whether the user chose a transport for Open MPI, in the environment (which mpirun --mca sets,
 * too) or in a parameter file. A file named by a variable counts as a choice. Source: Open MPI's FAQ, "How do
 * I set the value of MCA parameters?"
 */
#include "base_impl.h"
#include "world_internal.h"

/* True for "pml = ob1"; false for "pml = ^ucx" and "# pml = ob1". */
static bool line_chooses(const char *line)
{
    char name[4], value[256];

    if (sscanf(line, " %3[a-z] = %255[^\n]", name, value) < 2)
        return false;
    if (!strcmp(name, "pml"))
        return *value != '^' || strstr(value, "ob1");
    return (!strcmp(name, "btl") || !strcmp(name, "mtl")) && *value != '^';
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
