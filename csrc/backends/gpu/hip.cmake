# The HIP back end: clang compiles the same kernels, the C++ compiler the same host sources.

set(SYMMOE_HIP_ARCHITECTURES gfx942 CACHE STRING "AMD architectures to compile for")
set(SYMMOE_ROCM $ENV{ROCM_PATH} CACHE PATH "Where ROCm is installed; empty: looked for")

find_program(SYMMOE_HIP_CLANG NAMES $ENV{HIPCXX} amdclang++ clang++-19 clang++-18 clang++-17 clang++
  HINTS ${SYMMOE_ROCM}/bin ${SYMMOE_ROCM}/llvm/bin PATHS /opt/rocm/bin /opt/rocm/llvm/bin REQUIRED)
find_path(SYMMOE_HIP_INCLUDE hip/hip_runtime_api.h
  HINTS ${SYMMOE_ROCM}/include PATHS /opt/rocm/include REQUIRED)
find_library(SYMMOE_AMDHIP amdhip64 HINTS ${SYMMOE_ROCM}/lib PATHS /opt/rocm/lib REQUIRED)
find_path(SYMMOE_HIP_BITCODE ockl.bc
  HINTS ${SYMMOE_ROCM} PATHS /opt/rocm /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}
  PATH_SUFFIXES amdgcn/bitcode REQUIRED)
if(NOT SYMMOE_ROCM)
  cmake_path(GET SYMMOE_HIP_INCLUDE PARENT_PATH SYMMOE_ROCM)
endif()
message(STATUS "With the HIP back end: ${SYMMOE_HIP_CLANG}")

set(hip_architecture_flags ${SYMMOE_HIP_ARCHITECTURES})
list(TRANSFORM hip_architecture_flags PREPEND --offload-arch=)

# No fused multiply-add but where the source says so: the bits are the CPU kernels'.
set(hip_flags -x hip -std=c++20 -O3 -ffp-contract=off -Wall -Werror -fPIC -fvisibility=hidden
    --rocm-path=${SYMMOE_ROCM} --rocm-device-lib-path=${SYMMOE_HIP_BITCODE} ${hip_architecture_flags} -I${PROJECT_SOURCE_DIR}/csrc)

set(hip_objects "")
foreach(source ${symmoe_gpu_kernels})
  cmake_path(GET source STEM name)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/hip/${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/hip
    COMMAND ${SYMMOE_HIP_CLANG} ${hip_flags} -MD -MT ${object} -MF ${object}.d -c ${source}
            -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "hip ${name}.cu"
    VERBATIM)
  list(APPEND hip_objects ${object})
endforeach()

symmoe_add_gpu_backend(symmoe_hip ${hip_objects})
target_sources(symmoe_hip PRIVATE hip_physical_memory.cpp)
target_compile_definitions(symmoe_hip PRIVATE SYMMOE_HIP __HIP_PLATFORM_AMD__)
target_include_directories(symmoe_hip SYSTEM PRIVATE ${SYMMOE_HIP_INCLUDE})
target_link_libraries(symmoe_hip PRIVATE ${SYMMOE_AMDHIP})
