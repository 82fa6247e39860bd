#pragma once

#include <hdf5.h>

#include <memory>

/// How HDF5 reads and writes bytes here. Included by h5.cpp alone.
namespace kvlab::h5 {

/// What became of the writes to one file: the system's error number of the first that failed, 0
/// where none did.
using WriteError = std::shared_ptr<int>;

/// Sets the file driver of these file access properties: HDF5's own, but a write that fails (disk
/// full, quota, limit on file size) does not fail for HDF5, whose 1.10 crashes when it closes such
/// a file. What could not be written is held in memory, so that HDF5 goes on to see what it wrote,
/// and the error is noted. Whoever closes the file must ask for it.
void set_driver(hid_t access);

/// Of a file opened with that driver. It can still be asked when the file is closed.
WriteError write_error(hid_t file);

}  // namespace kvlab::h5
