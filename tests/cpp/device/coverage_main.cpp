#include "check.h"

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
