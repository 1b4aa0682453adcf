"""Functions of points, quaternions, colours and features, whose last axis is short: arrays and what to make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cases import Array

N = -1  # the number of points


def rotated_by_quaternions(q: Any, v: Any) -> Any:
    q = q / np.sqrt(np.sum(q * q, axis=-1, keepdims=True))
    axis, angle = q[:, 1:], q[:, :1]
    turned = 2.0 * np.cross(axis, v)
    return v + angle * turned + np.cross(axis, turned)


def multiplied_quaternions(a: Any, b: Any) -> Any:
    (s, x, y, z), (t, u, v, w) = a.T, b.T
    product = [s * t - x * u - y * v - z * w, s * u + x * t + y * w - z * v,
               s * v - x * w + y * t + z * u, s * w + x * v - y * u + z * t]  # fmt: skip
    return np.stack(product, axis=-1)


def rotated_by_matrices(r: Any, p: Any) -> Any:
    return (r @ p[:, :, None])[:, :, 0] + np.einsum("nji,nj->ni", r, p)


def rotated_by_one_matrix(r: Any, p: Any, t: Any) -> Any:
    return p @ r.T + t


def areas(a: Any, b: Any, c: Any) -> Any:
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=-1)


def barycentric(a: Any, b: Any, c: Any, p: Any) -> Any:
    def edge(p: Any, q: Any, r: Any) -> Any:
        return (q[:, 0] - p[:, 0]) * (r[:, 1] - p[:, 1]) - (q[:, 1] - p[:, 1]) * (r[:, 0] - p[:, 0])

    weights = np.stack([edge(b, c, p), edge(c, a, p), edge(a, b, p)], axis=-1)
    return weights / (1 + edge(a, b, c)[:, None] ** 2)


def projected(camera: Any, points: Any, weight: Any) -> Any:
    """Rodrigues' rotation, a camera with radial distortion, weighted errors: bundle adjustment."""
    turn, centre, focal, distortion = camera[:, :3], camera[:, 3:6], camera[:, 6:7], camera[:, 7:9]
    angle = np.sqrt(np.sum(turn * turn, axis=-1, keepdims=True))
    axis, c, s = turn / angle, np.cos(angle), np.sin(angle)
    p = points - centre
    dot = np.sum(axis * p, axis=-1, keepdims=True)
    p = p * c + np.cross(axis, p) * s + axis * (dot * (1.0 - c))
    image = p[:, :2] / (4.0 + p[:, 2:] ** 2)
    r2 = np.sum(image * image, axis=-1, keepdims=True)
    return weight[:, None] * focal * image * (1.0 + distortion[:, :1] * r2 + distortion[:, 1:] * r2 * r2)


def waves(x: Any) -> Any:
    features = np.stack([np.sin(x), np.cos(x), np.sin(2 * x), np.cos(2 * x)], axis=-1)
    return features * np.array([0.3, -0.2, 0.5, 0.7])


def fitted(x: Any, w: Any) -> Any:
    return np.stack([np.ones_like(x), x, x * x, np.sin(x)], axis=-1) @ w


def joined(a: Any, b: Any, c: Any) -> Any:
    columns = np.concatenate([a, b, c], axis=-1)
    return np.tanh(columns) * columns[:, ::-1]


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def nearest(x: Any, centres: Any) -> Any:
    return np.min(np.sum((x[:, None, :] - centres) ** 2, axis=-1), axis=1)


def spherical(p: Any) -> Any:
    r = np.sqrt(np.sum(p * p, axis=-1))
    return np.stack([r, np.arccos(0.99 * p[:, 2] / r), np.arctan2(p[:, 1], p[:, 0])], axis=-1)


def mixture(x: Any, means: Any, scales: Any, weights: Any) -> Any:
    z = -0.5 * ((x[:, None] - means) * np.exp(-scales)) ** 2 - scales + weights
    most = np.max(z, axis=-1)
    return most + np.log(np.sum(np.exp(z - most[:, None]), axis=-1))


def saturation(rgb: Any) -> Any:
    rgb = np.abs(rgb)
    most, least = np.max(rgb, axis=-1), np.min(rgb, axis=-1)
    return (most - least) / (most + 1e-3) * (rgb @ np.array([0.299, 0.587, 0.114], dtype=rgb.dtype))


def solved(m: Any, b: Any) -> Any:
    p, q, r, s = m[:, 0, 0], m[:, 0, 1], m[:, 1, 0], m[:, 1, 1]
    inverse = np.stack([np.stack([s, -q], axis=-1), np.stack([-r, p], axis=-1)], axis=-2)
    return np.sum(inverse / (1 + (p * s - q * r) ** 2)[:, None, None] * b[:, None, :], axis=-1)


def running(x: Any) -> Any:
    return np.cumsum(x, axis=-1) * np.roll(x, 1, axis=-1) + np.diff(x, axis=-1, prepend=x[:, :1])


def crossed_axes(x: Any) -> Any:
    """Arrays of twelve by twelve: which axis is short depends on which is last."""
    y = np.einsum("nk,mk->nm", x[:12], x[12:24]) * np.sum(x, axis=0)[0]
    return np.sum(np.stack([y, y.T, y * y], axis=-1), axis=-1) @ (y + y.T) + np.sum(y[:, :, None] * x[0], axis=2)


def pooled(x: Any) -> Any:
    """The largest of each two by two: short axes between long ones, behind a batch."""
    images = x.reshape(-1, 2, 4, 2, 10, 2)[:, :, :, :, :9]
    return np.max(images, axis=(3, 5)) * np.sum(images, axis=(1, 2, 3))[:, None, None, :, 0]


def turned_pairs(x: Any, angle: Any) -> Any:
    """Rotary embedding: pairs of neighbours in arrays that are counted by short axes."""
    a, b = x.reshape(2, 4, -1, 20)[..., 0::2], x.reshape(2, 4, -1, 20)[..., 1::2]
    c, s = np.cos(angle[:10]), np.sin(angle[:10])
    return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "rotated_by_quaternions": (rotated_by_quaternions, ((N, 4), (N, 3))),
    "multiplied_quaternions": (multiplied_quaternions, ((N, 4), (N, 4))),
    "rotated_by_matrices": (rotated_by_matrices, ((N, 3, 3), (N, 3))),
    "rotated_by_one_matrix": (rotated_by_one_matrix, ((3, 3), (N, 3), (3,))),
    "areas": (areas, ((N, 3), (N, 3), (N, 3))),
    "barycentric": (barycentric, ((N, 2), (N, 2), (N, 2), (N, 2))),
    "projected": (projected, ((N, 9), (N, 3), (N,))),
    "waves": (waves, ((N,),)),
    "fitted": (fitted, ((N,), (4,))),
    "joined": (joined, ((N, 3), (N, 1), (N, 2))),
    "softmax": (softmax, ((N, 3),)),
    "nearest": (nearest, ((N, 2), (6, 2))),
    "spherical": (spherical, ((N, 3),)),
    "mixture": (mixture, ((N,), (2,), (2,), (2,))),
    "saturation": (saturation, ((N, 3),)),
    "solved": (solved, ((N, 2, 2), (N, 2))),
    "running": (running, ((N, 4),)),
    "pooled": (pooled, ((N, 320),)),
    "turned_pairs": (turned_pairs, ((N, 160), (N,))),
    "crossed_axes": (crossed_axes, ((N, 3),)),
}
"""By name: the function, and the shapes of its arguments."""


def arguments(name: str, n: int, dtype: str = "f8") -> list[Array]:
    """Arrays for a function, of n points."""
    rng = np.random.default_rng(n)
    return [
        rng.standard_normal([n if extent == N else extent for extent in shape]).astype(dtype)
        for shape in FUNCTIONS[name][1]
    ]


def loss_of(name: str) -> Callable[..., Any]:
    """A number made of the result of a function."""
    return lambda *args: np.sum(np.sin(FUNCTIONS[name][0](*args)))
