// All kernels. What costs the compiler much and they do not need, such as threads, is in runtime.h.
#pragma once

#include "attention/attention.h"
#include "panels/coded.h"
#include "ranks/collectives.h"
#include "recurrent/delta_rule.h"
#include "products/experts.h"
#include "panels/grouped.h"
#include "panels/int8.h"
#include "attention/latent.h"
#include "attention/latent_attention.h"
#include "products/linear.h"
#include "attention/rope.h"
#include "products/route.h"
#include "products/rows.h"
#include "sampling/sample.h"
#include "recurrent/short_conv.h"
#include "recurrent/state_space.h"
