"""langchain-anthropic: langchain's own standard tests of a chat model, over /v1/messages."""

from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

from conftest import KEY, Server


class TestChatAnthropic(ChatModelIntegrationTests):
    """What langchain asks of every chat model."""

    @pytest.fixture(autouse=True)
    def _at_the_server(self, server: Server) -> None:
        type(self).server = server

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.server.model, "base_url": self.server.url, "api_key": KEY, "max_retries": 0}

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "program:shout"

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True
