/*
 * Suggestions for a misspelled word. Words are compared without case and punctuation (ResNet-50, cifar-10),
 * then by the names that other programs use (fp16), then by edit distance.
 */
#include "options.h"
#include "base_impl.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

enum { WORD = 40 };

int hvt__distance(const char *a, const char *b)
{
    int d[WORD + 1][WORD + 1], la = (int)strnlen(a, WORD), lb = (int)strnlen(b, WORD);

    for (int i = 0; i <= la; i++)
        d[i][0] = i;
    for (int j = 0; j <= lb; j++)
        d[0][j] = j;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[la][lb];
}

/* Lower-case letters and digits only. */
static void plain(const char *text, size_t len, char ret[WORD + 1])
{
    size_t n = 0;

    for (size_t i = 0; i < len && text[i] && n < WORD; i++)
        if (isalnum((unsigned char)text[i]))
            ret[n++] = (char)tolower((unsigned char)text[i]);
    ret[n] = 0;
}

/* Our word for a word that other programs use. */
static const char *translated(const char *word)
{
    static const char *const names[][2] = {
        {"fp16", "f16"},      {"float16", "f16"},  {"half", "f16"},         {"mixed", "f16"},
        {"fp32", "f32"},      {"float32", "f32"},  {"float", "f32"},        {"single", "f32"},
        {"bfloat16", "bf16"}, {"bfloat", "bf16"},  {"cifar", "cifar10"},    {"synthetic", "synth"},
        {"fake", "synth"},    {"random", "synth"}, {"gpu", "cuda"},         {"gpus", "cuda"},
        {"nvidia", "cuda"},   {"openmpi", "mpi"},  {"sharedmemory", "shm"}, {"zero", "sharded"},
        {"zero1", "sharded"}, {"fsdp", "sharded"}, {"ddp", "replicated"},   {"exact", "keep"},
        {"none", "f32"},
    };

    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (!strcmp(word, names[i][0]))
            return names[i][1];
    return word;
}

static bool same_digits(const char *a, const char *b)
{
    do {
        a += strcspn(a, "0123456789");
        b += strcspn(b, "0123456789");
        if (*a != *b)
            return false;
    } while (*a++ && *b++);
    return true;
}

/* The edit distance; INT_MAX: too large for a suggestion. `parameter`: the word continues with ":R". */
static int unlike(const char *word, const char *value, bool parameter)
{
    char wanted[WORD + 1];
    size_t len = strlen(value);
    int d;

    snprintf(wanted, sizeof wanted, "%s", value);
    while (parameter && len && isdigit((unsigned char)wanted[len - 1]))
        wanted[--len] = 0;
    if (!strcmp(word, wanted) || !strcmp(word, translated(value)))
        return 0;
    if (!same_digits(word, wanted)) /* cifar100 is not a misspelled cifar10 */
        return INT_MAX;
    d = hvt__distance(word, wanted);
    return d <= 2 && d <= (int)len / 3 ? d : INT_MAX;
}

bool hvt__suggest(const char *form, const char *value, char *ret_word, size_t bytes)
{
    char wanted[WORD + 1], word[WORD + 1];
    int best = INT_MAX;

    plain(value, strlen(value), wanted);
    for (const char *p = form; p; p = strchr(p, '|'), p = p ? p + 1 : NULL) {
        size_t len = strcspn(p, "|"), name = strcspn(p, "|:");
        int d;

        plain(p, name, word);
        d = unlike(word, wanted, name < len);
        if (d < best && (strlen(value) != len || strncmp(p, value, len))) {
            best = d;
            snprintf(ret_word, bytes, "%.*s", (int)len, p);
        }
    }
    return best < INT_MAX;
}
