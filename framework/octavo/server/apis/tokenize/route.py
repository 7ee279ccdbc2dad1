"""/tokenize, /detokenize and, where the operator allows it, /tokenizer_info."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from octavo.errors import PromptError
from octavo.inputs.processor import MAX_CHARS_PER_TOKEN
from octavo.inputs.prompt import check_token_ids
from octavo.model_folder.tokenizer import underlying
from octavo.server.apis.tokenize.body import (
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    DetokenizeRequest,
    SpecialToken,
    Text,
    TokenizeRequest,
    TokenizerInfo,
    Tokens,
)
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.server.protocol.notes import Notes, told
from octavo.server.protocol.tool_pairs import check_messages
from octavo_registry.routes import Endpoint

_OF_CHATS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "tools",
)


class TokenizeRoutes:
    """Puts text into token ids and back, in threads: a long text takes the tokenizer a while."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return both directions; what the tokenizer is, is a path that does not exist unless asked
        for: templates may be what an operator keeps to himself.
        """
        there = operation("Put text into token ids", request=TokenizeRequest, reply=Tokens)
        back = operation("Put token ids into text", request=DetokenizeRequest, reply=Text)
        made = [
            self._server.endpoint("POST", "/tokenize", self._tokenize, there),
            self._server.endpoint("POST", "/detokenize", self._detokenize, back),
        ]
        if self._server.config.access.enable_tokenizer_info_endpoint:
            tells = operation("Tell what the tokenizer is", reply=TokenizerInfo)
            made.append(self._server.endpoint("GET", "/tokenizer_info", self._info, tells))
        return made

    async def _tokenize(self, exchange: Exchange) -> Reply:
        request = self._server.read(exchange, TokenizeRequest, TOKENIZE_FIELDS)
        await self._server.check_model(request.model)
        engine = self._server.engine
        if (request.prompt is None) == (request.messages is None):
            raise HttpError(400, "give prompt or messages, one of them", param="prompt")
        if request.messages is not None:
            ids = await self._tokenize_chat(request, exchange.notes)
        else:
            _check_is_plain(request)
            special = request.add_special_tokens is not False
            ids = await engine.tokenize(request.prompt or "", add_special_tokens=special)
        warnings = told(exchange.notes)
        made = Tokens(
            count=len(ids),
            max_model_len=engine.max_model_len,
            tokens=ids,
            warnings=warnings,
        )
        if request.return_token_strs:
            tokenizer = engine.get_tokenizer()
            made.token_strs = await asyncio.to_thread(tokenizer.convert_ids_to_tokens, ids)
        return Reply(await asyncio.to_thread(encode, made))

    async def _tokenize_chat(self, request: TokenizeRequest, notes: Notes) -> list[int]:
        if not self._server.config.serve.allow_unpaired_tool_calls:
            messages = request.messages or []
            check_messages(messages, is_continued=request.continue_final_message)
        template = await self._server.checked_template(request.chat_template)
        kwargs = self._server.template_kwargs(request.chat_template_kwargs, notes, template)
        return await self._server.engine.tokenize_chat(
            request.conversation(notes, kwargs, self._server.modalities),
            add_special_tokens=bool(request.add_special_tokens),
        )

    async def _detokenize(self, exchange: Exchange) -> Reply:
        request = self._server.read(exchange, DetokenizeRequest, DETOKENIZE_FIELDS)
        await self._server.check_model(request.model)
        engine = self._server.engine
        most = engine.max_model_len * MAX_CHARS_PER_TOKEN
        warnings = told(exchange.notes)
        if len(request.tokens) > most:
            raise HttpError(400, f"{len(request.tokens)} tokens; at most {most}", param="tokens")
        if not request.tokens:
            return Reply(encode(Text(prompt="", warnings=warnings)))
        check_token_ids(request.tokens, engine.ready.vocab_size, name="tokens")
        text = await asyncio.to_thread(engine.get_tokenizer().decode, request.tokens)
        return Reply(await asyncio.to_thread(encode, Text(prompt=text, warnings=warnings)))

    async def _info(self, exchange: Exchange) -> Reply:
        tokenizer = self._server.engine.tokenizer
        ids = sorted(tokenizer.special_ids)
        special = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
        made = TokenizerInfo(
            tokenizer_class=type(underlying(tokenizer)).__name__,
            vocab_size=tokenizer.vocab_size,
            chat_template=self._template(),
            added_tokens_decoder={id: SpecialToken(content=text) for id, text in special},
        )
        return Reply(encode({**tokenizer.special_tokens, **msgspec.structs.asdict(made)}))

    def _template(self) -> str | None:
        try:
            return self._server.engine.chat_template().source
        except PromptError:
            return None


def _check_is_plain(request: TokenizeRequest) -> None:
    for name in _OF_CHATS:
        if getattr(request, name):
            raise HttpError(400, f"{name} belongs to messages, and prompt is given", param=name)
