"""Checks of what is asked over a network: the hub, judges, wandb."""

import netrc
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import torch
from omegaconf import DictConfig, OmegaConf

from physedit.eval_hooks.judges.judge import (
    Judge,
    JudgeQuestion,
    JudgeUnavailable,
    RemoteJudge,
    Verdict,
    VerdictKind,
    asked_anew,
)
from physedit.models.weights import split_revision
from physedit.train.assemble import build_checked
from physedit.train.doctor.finding import Finding, error, ok, refusal, warning
from physedit.train.doctor.places import nearest, shown

_ASKED = "Is the picture red?"
_PATIENCE_S, _TIMEOUT_S = 2.0, 60.0
"""Ours: how long doctor asks a judge again that is away, and waits for one answer."""
_WANDB = "https://api.wandb.ai"


def check_hub(config: DictConfig) -> Finding:
    """Verifies that weights may be downloaded and have room; they must be a hub id that is not whole in the cache."""
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    hub_id, revision = split_revision(str(config.backbone.weights))
    api = huggingface_hub.HfApi()
    who = "logged in" if huggingface_hub.get_token() else "not logged in"
    try:
        api.auth_check(hub_id)
        files = api.model_info(hub_id, revision=revision, files_metadata=True).siblings or []
    except GatedRepoError:
        remedy = f"Accept its licence at https://huggingface.co/{hub_id} and log in with: hf auth login."
        return error("hub", f"{hub_id} is gated, and you ({who}) may not read it", remedy)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        remedy = "Correct backbone.weights; a private model needs: hf auth login."
        return error("hub", f"the hub knows no {config.backbone.weights} ({who})", remedy)
    except Exception as failed:  # what the hub's client raises without a network depends on its HTTP library
        remedy = "Download the weights where there is a network, with: hf download, and set backbone.weights=FOLDER."
        return warning(
            "hub", f"{hub_id} is not whole in the cache and the hub cannot be asked: {_short(failed)}", remedy
        )
    # Files beside the parts' folders are for other programs and are not fetched.
    needed = sum(file.size or 0 for file in files if "/" in file.rfilename)
    place = nearest(Path(HF_HUB_CACHE))
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    found = f"{hub_id} may be read ({who}): {shown(needed)} at most to download, {shown(free)} free in {place}"
    if free < needed:
        return error("hub", found, "Free space, or set HF_HOME to a larger disk.")
    return ok("hub", found)


def judge_nodes(config: DictConfig) -> dict[str, DictConfig]:
    """Returns the judges of the chosen evaluations by where they are set; the run's own judge is one for several."""
    nodes: dict[str, DictConfig] = {}
    for name in sorted(map(str, config.eval)):
        node = config.eval[name].get("judge")
        if not isinstance(node, DictConfig):
            continue
        is_common = isinstance(config.judge, DictConfig) and node == config.judge
        nodes["judge" if is_common else f"eval.{name}.judge"] = node
    return nodes


def check_judge(key: str, node: DictConfig) -> Finding:
    """Builds a judge and, if it is on a server, asks it one tiny question, past its cache."""
    settings = OmegaConf.create(OmegaConf.to_container(node, resolve=True))
    assert isinstance(settings, DictConfig)
    for name, most in (("patience_s", _PATIENCE_S), ("timeout_s", _TIMEOUT_S)):
        if name in settings:
            settings[name] = min(float(settings[name]), most)
    if "cache_folder" in settings:
        settings.cache_folder = None
    try:
        judge: Judge = build_checked(key, settings)
    except ValueError as refused:
        return refusal(key, refused)
    if not isinstance(judge, RemoteJudge):
        return ok(key, f"{judge.judge_id}: not on a server")
    red = torch.zeros(3, 64, 64, dtype=torch.uint8)
    red[0] = 255
    try:
        verdict: Verdict = asked_anew(judge).answer(red, JudgeQuestion(_ASKED, None))
    except JudgeUnavailable as failed:
        remedy = "Start the server or correct judge.base_url, judge.model or the key; judge=none leaves it for later."
        return error(key, _short(failed), remedy)
    if verdict.kind in (VerdictKind.YES, VerdictKind.NO):
        return ok(key, f"{judge.judge_id} answers")
    if verdict.kind is VerdictKind.ERROR:
        return error(key, verdict.explanation, "Mend what the server names.")
    said = f"{judge.judge_id} answers, but not yes or no: {verdict.raw[:80]!r}"
    return warning(key, said, "Use a vision-language model that follows instructions, or raise judge.max_tokens.")


def check_tracker(config: DictConfig) -> Finding:
    """Verifies that wandb has a key where it is to be online."""
    mode = config.tracker.get("mode")
    if mode is None:
        return ok("tracker", f"{str(config.tracker['_target_']).rpartition('.')[2]}: nothing is sent")
    if mode != "online":
        return ok("tracker", f"wandb {mode}: nothing is sent")
    url = os.environ.get("WANDB_BASE_URL", _WANDB)
    if not _has_wandb_key(url):
        remedy = "Log in with: wandb login, or set WANDB_API_KEY; tracker.mode=offline needs no account."
        return error("tracker", f"wandb is to be online, but there is no key for {url}", remedy)
    return ok("tracker", f"wandb online, with a key for {url}")


def check_certificates(config: DictConfig) -> Finding:
    """Verifies that this system can verify servers, where one is asked over TLS."""
    asked = list(_over_tls(config))
    if not asked:
        return ok("certificates", "not needed: no server is asked over https")
    places = ssl.get_default_verify_paths()
    # Of the two, those that are not there are None, whatever their annotations say.
    folders = [Path(each) for each in (places.capath,) if each]
    if not places.cafile and not any(file for folder in folders for file in folder.glob("*.0")):
        found = f"this system has no certificates of authorities, but {', '.join(asked)} is asked over https"
        remedy = "Install them (apt install ca-certificates), or name a file with SSL_CERT_FILE."
        return error("certificates", found, remedy)
    return ok("certificates", f"from {places.cafile or places.capath}")


def _over_tls(config: DictConfig) -> Iterator[str]:
    for key, node in judge_nodes(config).items():
        if "base_url" in node and str(node.base_url or "https").startswith("https"):
            yield key
    if config.tracker.get("mode") == "online" and os.environ.get("WANDB_BASE_URL", _WANDB).startswith("https"):
        yield "wandb"


def _has_wandb_key(url: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(str(file)).authenticators(urlsplit(url).hostname or url) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _short(failed: BaseException) -> str:
    return " ".join(f"{type(failed).__name__}: {failed}".split())[:300]
