#pragma once

namespace kvlab {

/// Tells the C library to give every block of 4 MiB or more (a stretch of 4,096 tokens of 128
/// channels in float64) pages of its own and smaller ones a heap that stays. By default it keeps
/// freed tensors of up to 32 MiB in a heap that fragments: peak memory of a 32,768-token layer was
/// 1.4 GB in place of 0.5 GB, and with 8 MiB that of nova_kv on 8,192 tokens 8.1 times the input in
/// place of 5.3. Call once, at the start of a program.
void keep_memory_low();

/// Gives what was freed and kept for later back to the system: after work that needed much memory
/// for a short time, in many pieces.
void return_free_memory();

}  // namespace kvlab
