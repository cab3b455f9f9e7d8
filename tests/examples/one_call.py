"""A harness for verifiers that makes one chat completion in this process; its own starts a program with uv for each."""

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["OneCall"]


class OneCall(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, messages = self.resolve_prompt(data)
        said = [{"role": "system", "content": system}, *map(message_to_wire, messages)]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=said)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
