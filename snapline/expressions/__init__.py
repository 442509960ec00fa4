"""Expressions over columns: `sl.col("price") * 1.1`. What they say is in `expression`, what they compute in
`column_operations`."""

from snapline.expressions.expression import Expr, coalesce, col, concat_str, lit, when

__all__ = ["Expr", "coalesce", "col", "concat_str", "lit", "when"]
