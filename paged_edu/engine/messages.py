"""Messages: a conversation, checked and rendered to prompt token ids with the chat template of the model's tokenizer."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import UnsupportedError, flag

Message = Mapping[str, Any]
"""``{"role": "user", "content": "..."}``; the content is text, or a list of ``{"type": "text", "text": "..."}``."""
Conversation = Sequence[Message]

_UNSERVED = ("tools", "tool_calls", "tool_call_id", "function_call", "images", "audio", "documents", "reasoning_content")


def no_tools(tools: Any) -> None:
    if tools is not None:
        raise UnsupportedError("tools are not served yet; leave them out")


def as_conversations(messages: Any) -> list[list[dict[str, str]]]:
    """One conversation, or a list of them, as a list of checked ones. Raises ValueError or TypeError that names conversation and message."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes | bytearray):
        raise TypeError(f"messages must be a list of messages or a list of such lists, not {type(messages).__name__}")
    if not messages:
        raise ValueError("messages is empty: a conversation has at least 1 message")
    if all(isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray) for item in messages):
        return [_checked(conversation, f"conversation {i}, ") for i, conversation in enumerate(messages)]
    return [_checked(messages, "")]


def _checked(conversation: Conversation, where: str) -> list[dict[str, str]]:
    if not conversation:
        raise ValueError(f"{where}messages is empty: a conversation has at least 1 message")
    return [_message(message, f"{where}message {i}") for i, message in enumerate(conversation)]


def _message(message: Any, name: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise TypeError(f"{name} must be a dict with 'role' and 'content', not {type(message).__name__}")
    for key in message:
        if key in _UNSERVED:
            raise UnsupportedError(f"{name}: {key!r} is not served yet; a message has 'role' and 'content'")
        if key not in ("role", "content", "name"):
            raise ValueError(f"{name} has a key {key!r}; a message has 'role' and 'content', and may have 'name'")
    for key in ("role", "content"):
        if key not in message:
            raise ValueError(f"{name} has no {key!r}")
    checked = {key: value for key, value in message.items() if key != "content"} | {"content": _content(message["content"], name)}
    for key, value in checked.items():
        if not isinstance(value, str):
            raise TypeError(f"{name}: {key!r} must be text, not {type(value).__name__}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}: {key!r} is no valid text: a lone surrogate {value[error.start]!a} at position {error.start}") from error
    if not checked["role"]:
        raise ValueError(f"{name}: 'role' is empty; templates know 'system', 'user' and 'assistant'")
    return checked


def _content(content: Any, name: str) -> Any:
    """The text of a content; parts of text are joined by line ends."""
    if isinstance(content, str) or not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        return content
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or "type" not in part:
            raise TypeError(f"{name}: a part of 'content' is a dict with 'type', not {part!r}")
        if part["type"] != "text":
            raise UnsupportedError(f"{name}: content of type {part['type']!r} is not served yet; only 'text'")
        if not isinstance(part.get("text"), str) or set(part) != {"type", "text"}:
            raise ValueError(f"{name}: a part of type 'text' is {{'type': 'text', 'text': ...}}, not {dict(part)!r}")
        texts.append(part["text"])
    return "\n".join(texts)


def render(
    tokenizer: Any, conversation: list[dict[str, str]], *, chat_template: str | None = None, add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """The prompt token ids of a conversation from `as_conversations`. The template writes the begin token itself, if there is one.

    ``add_generation_prompt``: end with the words that begin an answer; ``continue_final_message``: end inside the last message, for the model
    to go on with it. Raises ValueError without a chat template, or when the template refuses the conversation.
    """
    flag("add_generation_prompt", add_generation_prompt)
    flag("continue_final_message", continue_final_message)
    if chat_template is not None and not isinstance(chat_template, str):
        raise TypeError(f"chat_template must be text, not {type(chat_template).__name__}")
    if add_generation_prompt and continue_final_message:
        raise ValueError("continue_final_message=True goes on with the last message, add_generation_prompt=True begins another: set one to False")
    if tokenizer is None:
        raise ValueError("this engine has no tokenizer, so it has no chat template: give prompts as token ids")
    if chat_template is None and not getattr(tokenizer, "chat_template", None):
        raise ValueError("the tokenizer of this model has no chat template: pass chat_template=..., or use a model that was trained to chat")
    try:
        ids = tokenizer.apply_chat_template(
            conversation, chat_template=chat_template, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message, tokenize=True, return_dict=False, tokenizer_kwargs={"verbose": False},
        )
    except Exception as error:          # jinja2's errors, and whatever a template runs into
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the chat template could not render the conversation: {said}") from error
    return [int(token) for token in ids]
