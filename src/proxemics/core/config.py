"""The configuration of a run: one typed tree, read from YAML, changed with ``--set a.b=c``, saved beside the results.

Unknown keys are refused with the path of the key, before any work is done. Each field carries its meaning, which also
stands in the JSON schema (``proxemics config schema``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from proxemics.core.errors import ConfigError, did_you_mean
from proxemics.core.files import write_text

Scalar = bool | int | float | str


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are checked on assignment."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
    )


class DataConfig(Section):
    """Which pictures, and how they are read and split."""

    source: str | None = None
    """Folder of class folders, or a CSV/Parquet table with the columns path, label and, if known, domain and split."""
    root: str | None = None
    """Folder that relative paths of a table start from; default: the folder of the table."""
    where: dict[str, str] = Field(default_factory=dict)
    """Keep only the rows whose column equals the value, e.g. {dataset: cub200_2010}."""
    layout: Literal["class", "domain/class"] = "class"
    """For a folder: what its first levels mean."""
    label: str = "label"
    """Column that holds the class."""
    domain: str = "domain"
    """Column that holds the domain (style, camera, season); may be absent."""
    split: Literal["auto", "column", "class_disjoint", "domain_held_out", "grouped"] = "auto"
    """How train, validation and test are made; auto uses the split column if there is one, else class_disjoint."""
    split_file: str | None = None
    """A split saved by `proxemics split`, used as it is."""
    test_fraction: float = Field(0.5, gt=0, lt=1)
    """Share of the classes (or groups) that become test classes."""
    val_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of the training classes that are set aside for choosing the model."""
    held_out_domain: str | None = None
    """The domain kept for testing with split: domain_held_out."""
    group: str | None = None
    """The column whose values must not be torn apart with split: grouped, e.g. an individual or a session."""
    size: int | None = Field(None, ge=16, le=2048)
    """Side of the square picture that the model sees, in pixels; default: the size the weights were made for."""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest share of the area that a random training crop keeps."""
    flip: float = Field(0.5, ge=0, le=1)
    """Probability of mirroring a training picture left to right."""
    augmentation: Literal["plain", "strong"] = "plain"
    """plain: random crop and flip; strong: also colour jitter, random greyscale and random erasing."""
    cache: Literal["none", "memory", "features"] = "none"
    """memory: decode every picture once into a memory-mapped file in the run folder; pays from the second epoch.
    features: also run the frozen stages (model.freeze_stages) once on `views` augmented views of each training picture,
    keep the results in half precision, and train the stages above on them."""
    views: int = Field(8, ge=1)
    """With cache: features, how many augmented views of each picture are made; epoch e uses view e modulo views.
    Where a method changes the pictures themselves nothing is stored, and every epoch has views of its own; for a fair
    comparison give the other runs as many views as epochs."""
    cache_folder: str | None = None
    """Where stored features are kept and shared between runs; default: the run folder, removed when the run ends."""
    workers: int = Field(2, ge=0)
    """Processes that read pictures; 0 reads them in the main process."""
    worker_start: Literal["auto", "fork", "spawn", "forkserver"] = "auto"
    """How worker processes are started; auto takes the platform's way."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do with a picture that cannot be read during training: stop, or use another of its class."""
    max_pixels: int = Field(178_956_970, ge=1)
    """Larger pictures are refused before they are decoded."""


class ModelConfig(Section):
    """The embedding model."""

    trunk: str = "auto"
    """Any timm model name; auto: tf_efficientnet_lite0, whose ImageNet weights need no network."""
    weights: str = "auto"
    """auto: the weights that belong to the trunk; none: random; or the path of a .safetensors, .pth or .pt file."""
    pooling: Literal["avg", "max", "avg+max", "gem", "cls"] = "avg"
    """How the trunk's last feature map becomes one vector."""
    dim: int = Field(512, ge=0, le=8192)
    """Length of the embedding; 0 leaves the pooled features as they are, without a head."""
    head_init: Literal["orthogonal", "kaiming"] = "orthogonal"
    """Start of the head: orthogonal keeps the distances of the pretrained features."""
    layer_norm: bool = False
    """Layer normalisation without parameters in front of the head."""
    freeze_bn: bool = True
    """Keep the statistics and parameters of batch normalisation as they came."""
    freeze_stages: int = Field(0, ge=0)
    """How many of the lowest stages stay untrained."""


class LossConfig(Section):
    """The base loss; each has a page under docs/losses with its options."""

    name: str = "proxy_anchor"
    """Name of the loss, e.g. proxy_anchor, norm_softmax, arcface."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of that loss; those left out keep their published defaults."""


class OptimConfig(Section):
    """Optimiser, learning rates and their course."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    """The optimiser."""
    lr: float = Field(1e-4, gt=0)
    """Learning rate of the trunk."""
    head_lr_mult: float = Field(1.0, gt=0)
    """The head learns at this many times the rate of the trunk."""
    proxy_lr_mult: float = Field(100.0, gt=0)
    """The parameters of the loss learn at this many times the rate of the trunk."""
    weight_decay: float = Field(1e-4, ge=0)
    """Weight decay of the trunk and the head; biases and normalisation are left out."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of sgd and rmsprop."""
    eps: float = Field(1e-8, gt=0)
    """Epsilon of adam, adamw and rmsprop."""
    schedule: Literal["constant", "step", "cosine"] = "cosine"
    """Course of the learning rates after the warm-up."""
    step_epochs: int = Field(10, ge=1)
    """With schedule step: multiply by gamma every so many epochs."""
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """With schedule step: multiply by gamma after each of these epochs, counted from the end of the warm-up, and not
    every step_epochs."""
    gamma: float = Field(0.5, gt=0, le=1)
    """With schedule step: the factor."""
    warmup_epochs: int = Field(1, ge=0)
    """Epochs at the start in which only the head and the proxies learn."""
    clip_value: float | None = Field(10.0, gt=0)
    """Clip each gradient entry to this size; null: do not."""
    clip_norm: float | None = Field(None, gt=0)
    """Clip the norm of the whole gradient, and then not its entries; null: do not."""


class TrainConfig(Section):
    """The loop."""

    epochs: int = Field(20, ge=0)
    """Passes over the training classes."""
    batch_size: int | None = Field(None, ge=1)
    """Pictures a step, over all devices together; null: 64, or fewer where there are few training classes."""
    per_class: int = Field(4, ge=0)
    """Pictures of each class in a batch; 0 shuffles without regard to classes."""
    accumulate: int = Field(1, ge=1)
    """Split each step into this many parts to save memory."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Arithmetic of the trunk; losses and norms are in float32 whatever is set here."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of a running average of the weights, which is then evaluated and kept; null: none."""
    select: Literal["recall_at_1", "map_at_r", "r_precision", "last"] = "map_at_r"
    """The metric on the validation classes that chooses the epoch; last: keep the last epoch."""
    patience: int | None = Field(None, ge=1)
    """Stop when the validation metric has not risen for so many epochs; null: never."""
    checkpoint_steps: int = Field(200, ge=1)
    """Write a checkpoint after so many steps, and after every epoch."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    devices: int = Field(1, ge=1)
    """Processes that share each batch."""
    tensorboard: bool = True
    """Also write TensorBoard event files."""


class EvaluationConfig(Section):
    """What is measured on the test split."""

    protocol: Literal[
        "zero_shot", "query_gallery", "cross_domain", "leave_one_domain_out", "single_domain", "musgrave", "roth"
    ] = "zero_shot"
    """zero_shot: each picture against all others; query_gallery: by column `role`; cross_domain: domain to domain;
    leave_one_domain_out: each domain against all others; single_domain: trained on one domain, tested within each
    other one; musgrave: one of four models that are measured together; roth: the metrics of Roth et al. Each has a page
    under docs/protocols."""
    query_domain: str | None = None
    """With cross_domain: the domain of the queries; null: the mean over all ordered pairs of domains."""
    gallery_domain: str | None = None
    """With cross_domain: the domain of the gallery; null: every other domain."""
    source_domain: str | None = None
    """Train on the rows of this domain only; null: on all. single_domain needs one, and takes that of the training rows
    if they have only one."""
    across: bool = False
    """With single_domain: also let each target domain search the unseen classes of the source."""
    fold: int = Field(0, ge=0, le=3)
    """With musgrave: which quarter of the training classes chooses the model; the others train it."""
    absent: Literal["error", "skip", "keep"] = "error"
    """Queries whose class the gallery lacks: refuse, leave out, or leave to be counted as lone queries."""
    recall_at: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 4, 8), min_length=1)
    """The k of Recall@k (any hit among the k nearest)."""
    clustering: bool = False
    """Also NMI and AMI of k-means, which take longer."""
    verification: bool = False
    """Also compare every two test pictures, whatever the protocol: area under the ROC, equal error rate, FNMR at FMR.
    Time grows with the square of their number."""
    bootstrap: int = Field(1000, ge=0)
    """Resamplings of the classes for the 95 % intervals; 0: no intervals."""


class Config(Section):
    """Everything that defines a run."""

    seed: int = Field(0, ge=0)
    """Seed of the split, the sampler, the augmentation and the initial weights."""
    data: DataConfig = Field(default_factory=DataConfig)
    """Which pictures, and how they are read and split."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The embedding model."""
    loss: LossConfig = Field(default_factory=LossConfig)
    """The base loss."""
    methods: dict[str, dict[str, Any] | None] = Field(default_factory=dict)
    """Plug-ins on top of the base loss, by name, with their options: {see: {weight: 0.2}}; each has a page under
    docs/methods."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """Optimiser, learning rates and their course."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    """The loop."""
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    """What is measured on the test split."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.train.batch_size is not None:
            _check_batch(self.train, self.train.batch_size)
        low, high = self.data.crop_scale
        if not 0 < low <= high <= 1:
            raise ValueError(f"data.crop_scale=[{low}, {high}]: give two shares of the area, 0 < low <= high <= 1")
        if self.data.cache == "features" and self.model.freeze_stages == 0:
            raise ValueError(
                "data.cache=features stores what frozen stages compute, and model.freeze_stages=0 freezes none; "
                "set model.freeze_stages=3, or data.cache=memory"
            )
        if self.data.split_file is not None and (self.data.source is not None or self.data.where):
            raise ValueError("data.split_file already names its pictures; leave out the source and --where")
        if self.data.split == "domain_held_out" and not self.data.held_out_domain:
            raise ValueError("data.split=domain_held_out needs data.held_out_domain")
        if self.data.split == "grouped" and not self.data.group:
            raise ValueError("data.split=grouped needs data.group, the name of a column")
        if self.evaluation.gallery_domain and not self.evaluation.query_domain:
            raise ValueError("evaluation.gallery_domain needs evaluation.query_domain, the domain that searches it")
        return self


def _check_batch(train: TrainConfig, batch_size: int) -> None:
    if train.per_class and batch_size % train.per_class:
        raise ValueError(
            f"train.batch_size={batch_size} is not a multiple of train.per_class={train.per_class}; "
            f"use {batch_size - batch_size % train.per_class or train.per_class}, or per_class=0"
        )
    share = train.devices * train.accumulate
    if batch_size % share:
        raise ValueError(
            f"train.batch_size={batch_size} cannot be shared by {train.devices} devices x "
            f"{train.accumulate} parts; use a multiple of {share}"
        )


def make_config(values: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()) -> Config:
    """Build a checked configuration from a nested mapping and ``a.b=c`` assignments.

    Args:
        values: nested mapping as read from YAML; absent keys keep their defaults.
        overrides: assignments, each ``dotted.key=value``, the value in YAML (``null``, ``[1, 2]``, ``1e-4`` ...).

    Raises:
        ConfigError: a key does not exist (with the nearest one that does) or a value is out of range; the message names
            the path of the key.

    Example:
        >>> make_config({"train": {"epochs": 3}}, ["optim.lr=1e-3", "loss.options.alpha=16"]).optim.lr
        0.001
        >>> make_config({}, ["train.epoch=3"])
        Traceback (most recent call last):
        ...
        proxemics.core.errors.ConfigError: train.epoch: no such key in train. Did you mean 'epochs'?
    """
    merged: dict[str, Any] = _copy(values or {})
    for assignment in overrides:
        _assign(merged, assignment)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(item) for item in error.errors())) from None


def setting_like(name: str) -> str | None:
    """Find the key that somebody means who gives its last part, or something near it.

    Args:
        name: for example ``epochs``, ``batch-size`` or ``loss``; a section with a name stands for that name.

    Returns:
        The dotted key, or None when nothing is near.

    Example:
        >>> setting_like("epoch"), setting_like("batch-size"), setting_like("loss"), setting_like("zzz")
        ('train.epochs', 'train.batch_size', 'loss.name', None)
    """
    keys: dict[str, str] = {}
    for section, values in Config().model_dump().items():
        for key in values if isinstance(values, dict) else ():
            keys.setdefault(section if key == "name" else key, f"{section}.{key}")
    near = get_close_matches(name.replace("-", "_"), keys, n=1, cutoff=0.8)
    return keys[near[0]] if near else None


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file (or none) and apply ``a.b=c`` assignments; see :func:`make_config`.

    Raises:
        ConfigError: the file is absent, is not YAML, or is not a mapping.
    """
    if path is None:
        return make_config({}, overrides)
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"No configuration file {path}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give the path of a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, such as 'train: {{epochs: 3}}'.")
    return make_config(values, overrides)


def dump_config(config: Config) -> str:
    """Return the complete configuration as YAML that :func:`load_config` reads back."""
    import yaml

    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


def save_config(config: Config, path: str | Path) -> None:
    """Write the complete configuration as YAML, atomically."""
    write_text(path, dump_config(config))


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {assignment!r}: write key=value, for example --set train.epochs=3.")
    *parents, last = key.strip().split(".")
    target = values
    for parent in parents:
        nested = target.setdefault(parent, {})
        if not isinstance(nested, dict):
            raise ConfigError(f"--set {assignment!r}: {parent} is a single value, not a section.")
        target = nested
    target[last] = parse_scalar(text)


def parse_scalar(text: str) -> Any:
    """Read the right-hand side of ``--set``: YAML, and also ``1e-4``, which YAML 1.1 takes for a word.

    Example:
        >>> parse_scalar("1e-4"), parse_scalar("null"), parse_scalar("[1, 2]"), parse_scalar("abc")
        (0.0001, None, [1, 2], 'abc')
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    path = ".".join(location)
    if item["type"] == "extra_forbidden":
        section: type[BaseModel] = Config
        for part in location[:-1]:
            annotation = section.model_fields[part].annotation
            if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
                break
            section = annotation
        inside = f" in {'.'.join(location[:-1])}" if location[:-1] else ""
        hint = did_you_mean(location[-1], section.model_fields)
        if not hint:
            near = setting_like(location[-1])
            hint = f" Did you mean {near!r}?" if near else f" Allowed: {', '.join(section.model_fields)}."
        return f"{path}: no such key{inside}.{hint}"
    if item["type"] == "model_type":
        near = setting_like(location[-1])
        hint = f" Did you mean {near!r}?" if near else ""
        return f"{path}={item['input']!r}: {path} is a section, not a single value.{hint}"
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if path else message
    if item["type"] == "value_error":
        return f"{message}."
    return f"{path}={item['input']!r}: {message}."
