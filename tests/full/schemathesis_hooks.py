"""What schemathesis sends to the server of api.py is bounded here, so that jobs end within seconds. What is valid stays valid, what is not stays so.

Fields of accepted shape are moved into a small range: max_tokens, token ids (into the vocabulary), waiting times. Half of the well-formed
job ids become those of two jobs that are there, because an invented id only ever meets a 404.
"""

import copy
import os
import zlib

import schemathesis

VOCABULARY = 49152
MAX_TOKENS = 3
# From api.py: a job that is over, and one that waits for scores.
DONE, WAITING = os.environ.get("ADAROLL_JOBS", "done,waiting").split(",")
U32 = 2**32


def is_whole(value, least=0, most=U32 - 1):
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def fold_ids(ids):
    return [id % VOCABULARY if is_whole(id) else id for id in ids] if isinstance(ids, list) else ids


def bounded_sampling(sampling):
    if sampling is None:
        sampling = {}
    if not isinstance(sampling, dict):
        return sampling
    longest = sampling.get("max_tokens", 1)
    if is_whole(longest, 1):
        longest = sampling["max_tokens"] = 1 + (longest - 1) % MAX_TOKENS
        if is_whole(sampling.get("min_tokens", "")):
            sampling["min_tokens"] %= longest + 1
    if "stop_token_ids" in sampling:
        sampling["stop_token_ids"] = fold_ids(sampling["stop_token_ids"])
    if isinstance(sampling.get("logit_bias"), list):
        for pair in sampling["logit_bias"]:
            if isinstance(pair, list) and pair and is_whole(pair[0]):
                pair[0] %= VOCABULARY
    return sampling


def bounded_prompt(prompt):
    if not isinstance(prompt, dict):
        return
    if "token_ids" in prompt:
        prompt["token_ids"] = fold_ids(prompt["token_ids"])
    reward = prompt.get("reward")
    if not isinstance(reward, dict):
        return
    if reward.get("kind") == "math" and isinstance(reward.get("answer"), str) and len(reward["answer"]) % 4:
        # Text drawn at random is hardly ever a number.
        reward["answer"] = str(len(reward["answer"]))
    if reward.get("kind") == "pull":
        seconds = reward.get("timeout_s")
        if seconds is None or (isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 1 < seconds <= 31_622_400):
            reward["timeout_s"] = 0.5


def bounded_job(job):
    job["sampling"] = bounded_sampling(job.get("sampling"))
    if isinstance(job.get("prompts"), list):
        for prompt in job["prompts"]:
            bounded_prompt(prompt)


def simplified_job(job):
    """Without what hardly ever fits together when it is drawn at random: this job is taken, unless its prompts themselves cannot be."""
    for field in ("strategy", "advantage", "weights", "job_id"):
        job.pop(field, None)
    job["sampling"] = {"max_tokens": job["sampling"].get("max_tokens", 1)}
    for prompt in job["prompts"]:
        prompt.pop("id", None)
        if zlib.crc32(repr(prompt).encode("utf-8", "surrogatepass")) % 4:
            prompt["reward"] = {"kind": "regex", "pattern": "[0-4]"}


def bounded_score(request):
    if isinstance(request.get("sequences"), list):
        for sequence in request["sequences"]:
            if isinstance(sequence, dict) and "token_ids" in sequence:
                ids = sequence["token_ids"] = fold_ids(sequence["token_ids"])
                if isinstance(ids, list) and len(ids) > 1 and is_whole(sequence.get("prompt_len"), 1):
                    sequence["prompt_len"] = 1 + (sequence["prompt_len"] - 1) % (len(ids) - 1)


def known_job(method, path, id):
    """A job that is there for about half of the ids that a caller could have been given."""
    # The stream of a job that waits has no end, and deleting it would leave later cases nothing that waits. Its id comes up by itself, too:
    # schemathesis takes ids from the list of jobs.
    waits = path.endswith("/events") or method == "DELETE"
    if id == WAITING:
        return DONE if waits else id
    if not isinstance(id, str) or not 1 <= len(id) <= 128 or id == DONE or id.count("-") == 4:
        return id
    chance = zlib.crc32(id.encode("utf-8", "surrogatepass")) % 4
    return WAITING if chance == 1 and not waits else DONE if chance < 2 else id


@schemathesis.hook
def before_call(context, case, **kwargs):
    method, path = case.operation.method.upper(), case.operation.path
    if isinstance(case.path_parameters, dict) and "id" in case.path_parameters:
        case.path_parameters["id"] = known_job(method, path, case.path_parameters["id"])
    if isinstance(case.query, dict) and str(case.query.get("wait_s", "")).isdecimal() and 0 <= int(case.query["wait_s"]) <= 60:
        case.query["wait_s"] = int(case.query["wait_s"]) % 2
    if isinstance(case.body, dict):
        case.body = copy.deepcopy(case.body)
        if (method, path) == ("POST", "/v1/rollouts"):
            bounded_job(case.body)
            positive = case.meta is not None and case.meta.generation.mode.is_positive
            if positive and zlib.crc32(repr(case.body).encode("utf-8", "surrogatepass")) % 2:
                simplified_job(case.body)
        if (method, path) == ("POST", "/v1/score"):
            bounded_score(case.body)
