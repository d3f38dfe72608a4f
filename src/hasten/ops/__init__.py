"""Operations that several models share: attention, losses, graphs, ranking, dense layers."""
