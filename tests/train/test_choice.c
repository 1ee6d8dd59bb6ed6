/* choice: the candidate that `hvtrain tune` chooses, for made-up times. */
#include "train/choice.h"
#include "check.h"

enum { N = 21 };

/* N times around `middle` whose quartiles are `spread` away from it, in no order. */
static hvt__timing around(const char *name, double middle, double spread, int samples)
{
    double at[N];
    hvt__timing t = {0};

    for (int i = 0; i < samples; i++)
        at[i] = middle + spread * ((i * 8) % samples - (samples - 1) / 2) / (0.25 * (samples - 1));
    hvt__timing_of(at, samples, &t);
    snprintf(t.name, sizeof t.name, "%s", name);
    return t;
}

static void shows(const hvt__timing *of, int n, int samples, int chosen, const char *text)
{
    char got[HVT__CHOICE_TEXT];

    CHECK(hvt__choose(of, n, samples) == chosen, "%d, not %d", hvt__choose(of, n, samples), chosen);
    hvt__choice_text(of, n, samples, "the default", 1e3, " ms", got);
    CHECK(!strcmp(got, text), "'%s', not '%s'", got, text);
}

TEST(quartiles_are_those_of_the_samples_and_the_outer_ones_between_two)
{
    hvt__timing t = around("a", 123, 3, N);
    double eight[] = {8, 1, 7, 2, 6, 3, 5, 4};

    CHECK(t.low == 120 && t.median == 123 && t.high == 126, "%g, %g-%g", t.median, t.low, t.high);
    hvt__timing_of(eight, 8, &t);
    CHECK(t.low == 2 && t.median == 4 && t.high == 7, "%g, %g-%g", t.median, t.low, t.high);
    hvt__timing_of(eight, 1, &t);
    CHECK(t.low == 1 && t.median == 1 && t.high == 1, "%g, %g-%g", t.median, t.low, t.high);
}

TEST(a_difference_within_the_spread_is_none)
{
    const hvt__timing slower[] = {around("A", 0.123, 0.003, N), around("B", 0.125, 0.004, N)};
    const hvt__timing faster[] = {
        around("A", 0.123, 0.003, N), around("C", 0.130, 0.001, N),
        around("B", 0.119, 0.002, N)}; /* below A's lower quartile, but not all of it */

    shows(slower, 2, N, 0,
          "no difference beyond the spread: A 123 ms (120-126), B 125 ms (121-129); the default stays");
    shows(faster, 3, N, 0,
          "no difference beyond the spread: A 123 ms (120-126), B 119 ms (117-121); the default stays");
}

TEST(what_is_faster_beyond_the_spread_is_chosen)
{
    const hvt__timing of[] = {around("A", 0.123, 0.003, N), around("B", 0.110, 0.004, N),
                              around("C", 0.108, 0.004, N), around("D", 0.107, 0.020, N)};

    shows(of, 3, N, 2, "C is faster than the default: A 123 ms (120-126), C 108 ms (104-112)");
    shows(of, 4, N, 2, "C is faster than the default: A 123 ms (120-126), C 108 ms (104-112)");
}

TEST(a_default_that_beats_all_others_is_called_the_fastest)
{
    const hvt__timing of[] = {around("A", 0.100, 0.001, N), around("B", 0.110, 0.002, N),
                              around("C", 0.120, 0.002, N)};

    shows(of, 3, N, 0, "the default is the fastest: A 100 ms (99-101), B 110 ms (108-112)");
    shows(of, 1, N, 0, "");
}

TEST(few_samples_choose_nothing)
{
    const hvt__timing of[] = {around("A", 0.2, 0.003, 7), around("B", 0.1, 0.003, 7)};

    shows(of, 2, 7, 0,
          "7 rounds are too few to tell, expected 8 or more: the default stays; tune FILE SECONDS measures "
          "longer");
    CHECK(hvt__choose(of, 2, 8) == 1, "eight are enough");
}

int main(void)
{
    RUN(quartiles_are_those_of_the_samples_and_the_outer_ones_between_two);
    RUN(a_difference_within_the_spread_is_none);
    RUN(what_is_faster_beyond_the_spread_is_chosen);
    RUN(a_default_that_beats_all_others_is_called_the_fastest);
    RUN(few_samples_choose_nothing);
    return check_done();
}
