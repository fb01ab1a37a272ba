/* parity_report.h - prints the results of `lockstep parity` as a table or as JSON. */
#ifndef LS_CLI_PARITY_REPORT_H
#define LS_CLI_PARITY_REPORT_H

#include "train/parity/parity.h"
#include "train/parity/parity_routes.h"

/* LS_EINVAL names the first difference. checkpoint: b resumed a checkpoint. */
ls_status parity_report(const struct parity_result *r, const struct parity_rerouted *e, bool checkpoint, bool json);
ls_status parity_report_drift(const struct parity_drifts *all, bool json);

#endif
