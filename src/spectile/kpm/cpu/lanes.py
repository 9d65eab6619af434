"""Vectors of LLVM code: the few operations that the CPU kernels are written in."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

_CONTRACT = ("contract",)
_INT32 = ir.IntType(32)


class Lanes:
    """Emit operations on vectors of `count` lanes of a floating-point type of llvmlite; one lane is a scalar."""

    def __init__(self, builder: Any, scalar: Any, count: int) -> None:
        self.builder, self.scalar, self.count = builder, scalar, count
        self.type = ir.VectorType(scalar, count) if count > 1 else scalar
        self.zero = ir.Constant(self.type, None)
        self._align = 8 if isinstance(scalar, ir.DoubleType) else 4

    def splat(self, value: Any) -> Any:
        """Return a vector with `value` in every lane."""
        if self.count == 1:
            return value
        one = self.builder.insert_element(ir.Constant(self.type, ir.Undefined), value, _INT32(0))
        first = ir.Constant(ir.VectorType(_INT32, self.count), [0] * self.count)
        return self.builder.shuffle_vector(one, one, first)

    def lane(self, x: Any, number: int) -> Any:
        """Return one lane."""
        return self.builder.extract_element(x, _INT32(number))

    def load(self, base: Any, offset: Any) -> Any:
        """Return the vector that begins `offset` elements of the pointer `base` after it."""
        return self.builder.load(self._at(base, offset), align=self._align)

    def store(self, value: Any, base: Any, offset: Any) -> None:
        """Write a vector `offset` elements of the pointer `base` after it."""
        self.builder.store(value, self._at(base, offset), align=self._align)

    def multiply(self, x: Any, y: Any) -> Any:
        """Return x y."""
        return self.builder.fmul(x, y, flags=_CONTRACT)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """Return x y + z, rounded once."""
        return self.builder.fadd(self.multiply(x, y), z, flags=_CONTRACT)

    def multiply_subtract(self, x: Any, y: Any, z: Any) -> Any:
        """Return z − x y, rounded once."""
        return self.builder.fsub(z, self.multiply(x, y), flags=_CONTRACT)

    def _at(self, base: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [offset]), self.type.as_pointer())
