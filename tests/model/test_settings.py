import logging
import warnings

import pytest
import torch

from stateful_pipeline.model.settings import settings_kept


def change_all(logger: logging.Logger) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_deterministic_debug_mode(1)
    torch.set_grad_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    logger.setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    raise KeyboardInterrupt


def test_settings_of_the_process_come_back_however_the_block_ends():
    logger = logging.getLogger("test_settings")
    before = (torch.get_num_threads(), list(warnings.filters))
    with pytest.raises(KeyboardInterrupt), settings_kept():
        change_all(logger)
    assert torch.get_default_dtype() == torch.float32
    assert (torch.get_num_threads(), list(warnings.filters)) == before
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    assert logger.level == logging.NOTSET
