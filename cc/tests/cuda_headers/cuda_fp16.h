// In place of CUDA's header, which a machine without CUDA lacks: hopper_emulation.h has the types.
