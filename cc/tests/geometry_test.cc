#include "core/geometry.h"
int main() { return transconv::FloorDiv(-1, 2) == -1 ? 0 : 1; }
