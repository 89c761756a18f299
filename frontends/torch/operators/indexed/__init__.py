"""Operations at places that tensors name: indexing, masks, scatters, embeddings, segments."""

from ...import_context import Convert
from . import embedding, indexing, masks, scatter, segments, selections
from .masks import MaskedElements, any_masked, refuse_choice

TABLE: dict[str, Convert] = {
    **indexing.TABLE,
    **masks.TABLE,
    **scatter.TABLE,
    **embedding.TABLE,
    **segments.TABLE,
    **selections.TABLE,
}
