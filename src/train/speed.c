/*
 * The speed of updates. The host queues updates faster than a GPU does them, so the host's time in an update
 * says little. Instead, time and updates are counted between two waits for the device.
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
