/* draw.h - what both pictures of a played schedule share. */
#ifndef LS_PARALLEL_PIPELINE_DRAW_H
#define LS_PARALLEL_PIPELINE_DRAW_H

#include "base/text.h"
#include "parallel/pipeline/schedule.h"

/* "F3"; of several chunks "Fa3", chunk a, b, ..; "F26.3" from the 27th on. Returns out. */
char *draw_label(char out[32], const ls_pipeline_schedule *s, const ls_action *a);
/* "1f1b: 4 ranks, 8 micro-batches" */
void draw_title(struct text *t, const ls_pipeline_schedule *s);
/* "bubble 27.3% (equal stages: 27.3%)" */
void draw_bubble(struct text *t, const ls_pipeline_schedule *s, const ls_pipeline_times *times, const ls_pipeline_timeline *p);
/* "virtual stages 0, 4": of a rank with two chunks or more */
void draw_stages(struct text *t, const ls_pipeline_schedule *s, int rank);
/* Seconds of the shortest action that takes any; 1 when none does. */
double draw_shortest(const ls_pipeline_schedule *s, const ls_pipeline_times *times);

#endif
