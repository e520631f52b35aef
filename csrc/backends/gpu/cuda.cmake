# The CUDA back end. nvcc is called by rules of our own: CMake's CUDA language wants a whole toolkit,
# which nvcc from PyPI is not. The host's sources need the runtime's headers only.

set(SYMMOE_CUDA_ARCHITECTURES 80 90 100 CACHE STRING
    "Compute capabilities to compile for; later ones run the last one's PTX")

# ---- nvcc and the toolkit round it ---------------------------------------------------------------

# Environments into which pip may have put nvidia-cuda-nvcc and its companions.
set(environments $ENV{VIRTUAL_ENV} ${PROJECT_SOURCE_DIR}/.venv)
if(Python_EXECUTABLE)
  cmake_path(GET Python_EXECUTABLE PARENT_PATH python_folder)
  cmake_path(GET python_folder PARENT_PATH python_prefix)
  list(PREPEND environments ${python_prefix})
endif()
list(TRANSFORM environments APPEND /lib/python3*/site-packages/nvidia/cu*/bin
     OUTPUT_VARIABLE patterns)
file(GLOB pip_folders ${patterns})
list(SORT pip_folders COMPARE NATURAL ORDER DESCENDING)

find_program(SYMMOE_NVCC NAMES $ENV{CUDACXX} nvcc
  PATHS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin ${pip_folders})

# Its path may be that of a script or a link, so nvcc is asked where it is at home.
if(SYMMOE_NVCC)
  execute_process(
    COMMAND ${SYMMOE_NVCC} --dryrun -c ${PROJECT_SOURCE_DIR}/csrc/kernels/device/copy_to_window.cu
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
    OUTPUT_VARIABLE dry_run ERROR_VARIABLE dry_run)
  if(dry_run MATCHES "#\\$ TOP=([^\n]*)")
    cmake_path(SET cuda_home NORMALIZE ${CMAKE_MATCH_1})
  endif()
  file(GLOB target_folders ${cuda_home}/targets/*)
  find_path(SYMMOE_CUDA_INCLUDE cuda_runtime_api.h
    HINTS ${cuda_home} ${target_folders} PATH_SUFFIXES include)
  find_library(SYMMOE_CUDART libcudart_static.a
    HINTS ${cuda_home} ${target_folders} PATH_SUFFIXES lib64 lib)
endif()

set(missing "")
if(NOT SYMMOE_NVCC)
  set(missing "no nvcc in CUDACXX, PATH, CUDA_HOME, /usr/local/cuda or a Python environment")
elseif(NOT SYMMOE_CUDA_INCLUDE)
  set(missing "no cuda_runtime_api.h that belongs to ${SYMMOE_NVCC}")
elseif(NOT SYMMOE_CUDART)
  set(missing "no libcudart_static.a that belongs to ${SYMMOE_NVCC}")
elseif(NOT SYMMOE_SANITIZE STREQUAL "none" AND NOT SYMMOE_CUDA STREQUAL "ON")
  set(missing "sanitizers do not see device code")
endif()
if(missing)
  if(SYMMOE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SYMMOE_CUDA=ON: ${missing}")
  endif()
  message(STATUS "Without the CUDA back end: ${missing}")
  return()
endif()
message(STATUS "With the CUDA back end: ${SYMMOE_NVCC}")

# ---- flags ---------------------------------------------------------------------------------------

execute_process(
  COMMAND ${SYMMOE_NVCC} --list-gpu-arch
  OUTPUT_VARIABLE known_architectures
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9]+[a-z]?" known_architectures "${known_architectures}")
set(architecture_flags "")
foreach(architecture ${SYMMOE_CUDA_ARCHITECTURES})
  if(architecture IN_LIST known_architectures)
    list(APPEND architecture_flags -gencode arch=compute_${architecture},code=sm_${architecture})
    set(last_architecture ${architecture})
  else()
    message(STATUS "${SYMMOE_NVCC} does not know sm_${architecture}: left out")
  endif()
endforeach()
list(APPEND architecture_flags
     -gencode arch=compute_${last_architecture},code=compute_${last_architecture})

# No fused multiply-add but where the source says so: the bits are the CPU kernels'.
set(nvcc_flags -std=c++20 -O3 -fmad=false -Werror all-warnings
    --compiler-options -fPIC,-fvisibility=hidden -ccbin ${CMAKE_CXX_COMPILER}
    -I${PROJECT_SOURCE_DIR}/csrc ${architecture_flags})

# ---- the library ---------------------------------------------------------------------------------

set(objects "")
foreach(source ${symmoe_gpu_kernels})
  cmake_path(GET source STEM name)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cuda
    COMMAND ${SYMMOE_NVCC} ${nvcc_flags} -MD -MT ${object} -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "nvcc ${name}.cu"
    VERBATIM)
  list(APPEND objects ${object})
endforeach()

# The runtime is part of it, so the library needs none on the machine and can be loaded without a
# driver; its calls then say so.
symmoe_add_gpu_backend(symmoe_cuda ${objects})
target_sources(symmoe_cuda PRIVATE cuda_physical_memory.cpp)
target_include_directories(symmoe_cuda SYSTEM PRIVATE ${SYMMOE_CUDA_INCLUDE})
target_link_libraries(symmoe_cuda PRIVATE ${SYMMOE_CUDART} rt)
