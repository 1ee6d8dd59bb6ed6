/*
 * Tables of text for a terminal, and numbers and texts of files as they appear there.
 */
#include "inspect_impl.h"
#include "base_impl.h"

#include <ctype.h>
#include <inttypes.h>

static int columns(const hvt__grid *t)
{
    return (int)strlen(t->form);
}

static char **add_row(hvt__grid *t)
{
    const size_t n = (size_t)columns(t);

    if (t->rows == t->room) {
        int room = t->room ? 2 * t->room : 64;
        char **more = realloc(t->cell, (size_t)room * n * sizeof *more);

        if (!more) {
            t->failed = true;
            return NULL;
        }
        t->cell = more;
        t->room = room;
    }
    memset(t->cell + (size_t)t->rows * n, 0, n * sizeof *t->cell);
    return t->cell + (size_t)t->rows++ * n;
}

void hvt__grid_row(hvt__grid *t, ...)
{
    char **row = add_row(t);
    va_list ap;

    va_start(ap, t);
    for (int i = 0; row && i < columns(t); i++) {
        row[i] = strdup(va_arg(ap, const char *));
        t->failed = t->failed || !row[i];
    }
    va_end(ap);
}

void hvt__grid_rule(hvt__grid *t)
{
    add_row(t);
}

/* The number of letters; one may be several bytes of UTF-8. */
static int width(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

static void print_rule(const hvt__grid *t, const int *wide, FILE *f)
{
    int all = 0;

    for (int i = 0; i < columns(t); i++)
        all += wide[i] + (i ? 2 : 0);
    while (all-- > 0)
        fputc('-', f);
    fputc('\n', f);
}

/* Prints a row without trailing blanks. */
static void print_row(const hvt__grid *t, char *const *row, const int *wide, FILE *f)
{
    int blanks = 0; /* due before the next text */

    for (int i = 0; i < columns(t); i++) {
        const int rest = wide[i] - width(row[i]);

        blanks += (i ? 2 : 0) + (t->form[i] == 'r' ? rest : 0);
        if (*row[i]) {
            fprintf(f, "%*s%s", blanks, "", row[i]);
            blanks = 0;
        }
        blanks += t->form[i] == 'r' ? 0 : *row[i] ? rest : wide[i];
    }
    fputc('\n', f);
}

hvt_status hvt__grid_print(hvt__grid *t, FILE *f)
{
    enum { MOST = 8 };
    const int n = columns(t);
    int wide[MOST] = {0};

    for (int r = 0; r < t->rows && !t->failed; r++)
        for (int i = 0; i < n && t->cell[r * n]; i++)
            wide[i] = width(t->cell[r * n + i]) > wide[i] ? width(t->cell[r * n + i]) : wide[i];
    for (int r = 0; r < t->rows && !t->failed; r++)
        if (t->cell[r * n])
            print_row(t, t->cell + (size_t)r * (size_t)n, wide, f);
        else
            print_rule(t, wide, f);
    for (int i = 0; i < t->rows * n; i++)
        free(t->cell[i]);
    free(t->cell);
    t->cell = NULL;
    t->rows = t->room = 0;
    HVT_CHECK(!t->failed, E_MEM, "no memory for a table");
    return HVT_OK;
}

const char *hvt__digits(int64_t n, bool dash, char ret_text[HVT__DIGITS])
{
    char plain[HVT__DIGITS];
    int len = snprintf(plain, sizeof plain, "%" PRId64, n), at = 0;

    if (!n && dash)
        return "-";
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0 && plain[i - 1] != '-')
            ret_text[at++] = ',';
        ret_text[at++] = plain[i];
    }
    ret_text[at] = 0;
    return ret_text;
}

void hvt__print_text(FILE *f, const char *text, size_t most)
{
    for (size_t i = 0; text[i]; i++) {
        if (i >= most && (text[i] & 0xc0) != 0x80) {
            fputs("...", f);
            return;
        }
        fputc(iscntrl((unsigned char)text[i]) ? '?' : text[i], f);
    }
}
