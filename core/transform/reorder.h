#pragma once

#include <ATen/ATen.h>

namespace kvlab::transform {

/// The channels of all heads in ascending order of their sum over sequences and tokens, as
/// RotateKV's code sorts them: x [B, H, n, d] to int64 [H·d], channel c of head h being h·d + c.
at::Tensor channel_order(const at::Tensor& x);

/// x [B, H, n, d] with channel i of the result being channel order[i]; channels move between heads.
at::Tensor reorder(const at::Tensor& x, const at::Tensor& order);

/// The inverse of `reorder`.
at::Tensor undo_reorder(const at::Tensor& y, const at::Tensor& order);

}  // namespace kvlab::transform
