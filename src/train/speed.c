/*
 * How fast updates are. A GPU is given updates faster than it does them, so the host's time in one says
 * little: time counts between two points at which the device was waited for, and so do the updates.
 */
#include "run.h"

#include <math.h>

void hvt__speed_add(hvt__speed *s, double seconds, int64_t images)
{
    s->seconds += seconds;
    s->queued_images += images;
    s->queued_updates++;
}

void hvt__speed_waited(hvt__speed *s, double seconds)
{
    s->seconds += seconds;
    s->done_seconds = s->seconds;
    s->images += s->queued_images;
    s->updates += s->queued_updates;
    s->queued_images = s->queued_updates = 0;
}

double hvt__speed_update(const hvt__speed *s)
{
    return s->updates ? s->done_seconds / (double)s->updates : (double)NAN;
}

double hvt__speed_img_s(const hvt__speed *s)
{
    return s->updates ? (double)s->images / s->done_seconds : (double)NAN;
}
