# libtorch as one imported target, from the PyPI wheel that scripts/setup.sh puts into .venv (or KVLAB_TORCH_ROOT).
#
# The wheel's own TorchConfig.cmake stops on a machine without a CUDA toolkit and takes over the CUDA architectures
# on one that has it. The programs here need only its CPU half, so they link that half by name.
if(NOT KVLAB_TORCH_ROOT)
  file(GLOB _candidates LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(_candidates)
    list(GET _candidates 0 _root)
  endif()
  set(KVLAB_TORCH_ROOT "${_root}" CACHE PATH "folder of the installed torch Python package" FORCE)
endif()
if(NOT EXISTS ${KVLAB_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "libtorch not found at '${KVLAB_TORCH_ROOT}'. Run scripts/setup.sh, or set -DKVLAB_TORCH_ROOT "
                      "to the 'torch' folder of a Python environment that has torch 2.11.")
endif()

add_library(kvlab_libtorch INTERFACE)
target_include_directories(kvlab_libtorch SYSTEM INTERFACE
  ${KVLAB_TORCH_ROOT}/include ${KVLAB_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(kvlab_libtorch INTERFACE
  ${KVLAB_TORCH_ROOT}/lib/libtorch_cpu.so ${KVLAB_TORCH_ROOT}/lib/libc10.so)
# libtorch_cpu.so finds its own dependencies by its own run path; the linker need not.
target_link_options(kvlab_libtorch INTERFACE -Wl,--allow-shlib-undefined)
