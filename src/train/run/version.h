/* version.h - the name and version of this build. */
#ifndef LS_TRAIN_RUN_VERSION_H
#define LS_TRAIN_RUN_VERSION_H

#define LOCKSTEP_VERSION "0.1.0"

#endif
