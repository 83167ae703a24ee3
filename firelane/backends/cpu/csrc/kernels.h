// All kernels. What costs the compiler much and they do not need, such as threads, is in runtime.h.
#pragma once

#include "attention.h"
#include "coded.h"
#include "collectives.h"
#include "delta_rule.h"
#include "experts.h"
#include "grouped.h"
#include "int8.h"
#include "latent.h"
#include "latent_attention.h"
#include "linear.h"
#include "rope.h"
#include "route.h"
#include "rows.h"
#include "sample.h"
#include "short_conv.h"
#include "state_space.h"
