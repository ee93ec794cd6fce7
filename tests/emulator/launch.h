// How kernels are found and started: what the fake driver and the self-tests need of the emulator.
//
// A kernel is known by its name. Its parameters are given as the driver gives them: an array of pointers, one a parameter, to values of the sizes
// that the kernel's own signature says. Blocks are one-dimensional: common.cuh gives a kernel no other coordinate of its thread.
#pragma once
#include <cstddef>

namespace emulator {

struct Size {
    unsigned x, y, z;
};

struct Kernel {
    const char* name;
    // Reads the parameters and calls the function, which is `function` in its own type.
    void (*call)(void (*function)(), void** parameters);
    void (*function)();
    unsigned parameters;
    const size_t* parameter_bytes;
    const Kernel* next;
};

// nullptr where no kernel of this name was compiled in.
const Kernel* find(const char* name);

// Why there can be no launch of this shape; nullptr where there can.
const char* wrong_with(Size grid, Size block, size_t shared_bytes);

// Runs every thread of every block to its end. False: the kernel did something wrong, which was said on standard error; the threads that had not
// ended are left where they were.
bool launch(const Kernel& kernel, Size grid, Size block, size_t shared_bytes, void** parameters);
bool launch(const char* name, Size grid, Size block, size_t shared_bytes, void** parameters);

// What the blocks of this thread's launches have done so far.
struct Work {
    unsigned long long switches, multiplications;
};
const Work& work();

}  // namespace emulator

// The order in which this thread's launches run warps, lanes and blocks: 0 up, 1 down, anything else a shuffle of this seed.
extern "C" void adaroll_emulator_order(unsigned order);
