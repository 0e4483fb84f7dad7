// All kernels in one unit.
#include "embedding.cu"
#include "norm.cu"
#include "columns.cu"
#include "rotary.cu"
#include "attention.cu"
#include "attention_tiles.cu"
#include "loss.cu"
#include "optimizer.cu"
