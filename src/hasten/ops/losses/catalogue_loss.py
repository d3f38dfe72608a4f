"""The earlier name of :mod:`hasten.ops.losses.catalog_loss`, for models outside of this package."""

from hasten.ops.losses.catalog_loss import catalog_cross_entropy as catalogue_cross_entropy

__all__ = ["catalogue_cross_entropy"]
