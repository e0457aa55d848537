"""What the checkers say, in English and Chinese."""

from typing import Any, NamedTuple

from exercises.exercise import Text

_NOT_RIGHT = Text("{name} is not right yet: {what}.", "{name} 还不正确：{what}。")
_WHERE = Text("with {inputs}, {what}", "输入为 {inputs} 时，{what}")
_INPUTS = Text(" The inputs: ", "这组输入：")
MESSAGES = {
    "empty": Text(
        "its body is still to be written (it raises NotImplementedError)",
        "函数体还没有写（引发了 NotImplementedError）",
    ),
    "none": Text("it returns None: is there a `return`?", "返回了 None：是不是忘了 `return`"),
    "raised": Text("it raises {error}", "函数引发了 {error}"),
    "raised_at": Text("line {line} raises {error}", "第 {line} 行引发了 {error}"),
    "changed": Text(
        "it changes its argument `{argument}` in place; compute on a copy",
        "函数就地修改了参数 `{argument}`；请在副本上计算",
    ),
    "constant": Text(
        "it returns equal results where the answers differ; compute the answer from the inputs",
        "输入不同、答案也应不同，返回值却总是一样；答案要由输入算出",
    ),
    "number": Text(
        "expected {wanted} results, got {given}", "应返回 {wanted} 个结果，得到 {given} 个"
    ),
    "array": Text("{which}got {given}, which is no array", "{which}得到 {given}，不是数组"),
    "shape": Text(
        "{which}expected shape {wanted}, got {given}", "{which}形状应为 {wanted}，得到 {given}"
    ),
    "kind": Text(
        "{which}expected dtype {wanted}, got {given}",
        "{which}数据类型应为 {wanted}，得到 {given}",
    ),
    "value": Text(
        "{which}at index {index}, expected {wanted}, got {given}",
        "{which}下标 {index} 处应为 {wanted}，得到 {given}",
    ),
    "scalar": Text("{which}expected {wanted}, got {given}", "{which}应为 {wanted}，得到 {given}"),
    "which": Text("result {number} of {count}: ", "第 {number} 个结果（共 {count} 个）："),
    # Of layers.
    "no_layer": Text(
        "it is no subclass of `keras.layers.Layer`", "它不是 `keras.layers.Layer` 的子类"
    ),
    "call_lacks": Text("`call` lacks the argument `{argument}`", "`call` 缺少参数 `{argument}`"),
    "init_lacks": Text(
        "`__init__` lacks the argument `{argument}`", "`__init__` 缺少参数 `{argument}`"
    ),
    "no_kwargs": Text(
        "`__init__` does not take `**kwargs` and pass them to `super().__init__`, so Keras cannot "
        "give it a name or restore it",
        "`__init__` 没有接收 `**kwargs` 并传给 `super().__init__`，Keras 无法给它命名，"
        "也无法恢复它",
    ),
    "unseen": Text(
        "`self.{attribute}` is of type `{given}`, which Keras neither trains nor saves; make it by "
        "`self.add_weight`",
        "`self.{attribute}` 的类型是 `{given}`，Keras 既不训练它，也不保存它；"
        "请用 `self.add_weight` 创建",
    ),
    "in_call": Text(
        "it makes weights or layers in `call`; make them in `__init__` or `build`",
        "它在 `call` 里创建权重或层；请在 `__init__` 或 `build` 里创建",
    ),
    "not_repeated": Text(
        "two calls with the same inputs give different results",
        "用相同的输入调用两次，结果不同",
    ),
    "weights": Text(
        "it has {given} weights, of shapes {shapes}, but should have {wanted}, of shapes "
        "{wanted_shapes}",
        "它有 {given} 个权重，形状为 {shapes}；应有 {wanted} 个，形状为 {wanted_shapes}",
    ),
    "weight_shape": Text(
        "weight {number} of {count} should have shape {wanted}, got {given}",
        "第 {number} 个权重（共 {count} 个）的形状应为 {wanted}，得到 {given}",
    ),
    "frozen": Text(
        "weight {number} of {count} is not trainable",
        "第 {number} 个权重（共 {count} 个）不可训练",
    ),
    "begins": Text(
        "weight {number} of {count} should begin with {wanted}, not {given}",
        "第 {number} 个权重（共 {count} 个）的初值应为 {wanted}，不是 {given}",
    ),
    "no_config": Text(
        "it has no `get_config` of its own, with which a file is loaded: Keras guesses one, of "
        "numbers and names only; return every argument in it",
        "它没有自己的 `get_config`，而加载文件时要靠它：Keras 只能猜出数和名字；"
        "请在其中返回每个参数",
    ),
    "not_registered": Text(
        "Keras does not find the class when it loads a file; put "
        "`@keras.saving.register_keras_serializable()` above it",
        "加载文件时 Keras 找不到这个类；请在类的上面写 "
        "`@keras.saving.register_keras_serializable()`",
    ),
    "config_base": Text(
        "`get_config` leaves out `super().get_config()`, which has the name and the dtype",
        "`get_config` 漏了 `super().get_config()`，名字和数据类型在那里",
    ),
    "config_lacks": Text(
        "`get_config` does not return the argument `{argument}`, which a loaded layer then lacks",
        "`get_config` 没有返回参数 `{argument}`，加载后的层就没有它",
    ),
    "config_value": Text(
        "`get_config` returns {given} for the argument `{argument}`, which was {wanted}",
        "参数 `{argument}` 是 {wanted}，`get_config` 返回的却是 {given}",
    ),
    "saving": Text(
        "a model with it cannot be saved and loaded: {error}",
        "含有它的模型无法保存并加载：{error}",
    ),
    "reloaded": Text(
        "a model with it gives other results after it was saved and loaded",
        "含有它的模型保存并加载之后，结果变了",
    ),
    "mask_lost": Text(
        "it does not pass on the mask of its first input; set `self.supports_masking = True`",
        "它没有把第一个输入的掩码传下去；请设 `self.supports_masking = True`",
    ),
    "in_model": Text(
        "it is right by itself, but in a model, where Keras passes the masks, expected {wanted}, "
        "got {given}",
        "单独调用时正确，但在模型里（掩码由 Keras 传入）应得到 {wanted}，得到 {given}",
    ),
    "dropout_always": Text(
        "dropout is active although `training` is not True",
        "`training` 不是 True 时，暂退法仍在起作用",
    ),
    "dropout_never": Text(
        "with `training=True` dropout changes nothing",
        "`training=True` 时，暂退法没有起作用",
    ),
    "dropout_place": Text(
        "dropout is in the wrong place: where nearly all is dropped, at index {index}, expected "
        "{wanted}, got {given}",
        "暂退法用错了地方：几乎全部丢弃时，下标 {index} 处应为 {wanted}，得到 {given}",
    ),
    "untrained": Text(
        "training does not change weight {number} of {count}: its gradient should not be 0",
        "训练没有改变第 {number} 个权重（共 {count} 个）：它的梯度不应为 0",
    ),
    "gradient": Text(
        "the gradient of weight {number} of {count} at index {index} should be {wanted}, "
        "got {given}",
        "第 {number} 个权重（共 {count} 个）的梯度，下标 {index} 处应为 {wanted}，得到 {given}",
    ),
    "gradient_of_input": Text(
        "the gradient that it passes back to `{argument}` is wrong",
        "它传回 `{argument}` 的梯度不对",
    ),
    # Mistakes, known by their numbers.
    "no_mask": Text(
        "hidden keys still have weights: the mask is not used", "被掩蔽的键仍有权重：没有使用掩码"
    ),
    "mask_after": Text(
        "the mask is applied after the softmax, so that the weights no longer sum to 1; hide the "
        "scores before it",
        "掩码用在了 softmax 之后，权重之和不再是 1；应在 softmax 之前遮住评分",
    ),
    "inverted": Text(
        "the mask hides what should be visible: True means visible",
        "掩码用反了：True 表示可见",
    ),
    "over_queries": Text(
        "the softmax runs over the queries, not over the keys", "softmax 沿着查询计算，应沿着键计算"
    ),
    "swapped": Text("key and value are swapped", "键和值互换了"),
    "not_scaled": Text(
        "the scores are not divided by the square root of the width",
        "评分没有除以宽度的平方根",
    ),
    "scaled_by_width": Text(
        "the scores are divided by the width, not by its square root",
        "评分除以的是宽度，应除以它的平方根",
    ),
    "scaled_by_model": Text(
        "the scores are divided by the square root of the width of all heads together, not of one",
        "评分除以的是所有头总宽度的平方根，应是一个头的宽度的平方根",
    ),
    "heads_mixed": Text(
        "a reshape alone mixes tokens and heads: split the last axis, then transpose",
        "只用 reshape 会把词元和头混在一起：应先拆开最后一个轴，再转置",
    ),
    "split_mixed": Text(
        "a reshape alone mixes tokens and heads as they are split: split the last axis, then "
        "transpose",
        "拆成多个头时只用 reshape，把词元和头混在了一起：应先拆开最后一个轴，再转置",
    ),
    "merge_mixed": Text(
        "a reshape alone mixes tokens and heads as they are joined: transpose first",
        "合并头时只用 reshape，把词元和头混在了一起：应先转置",
    ),
    "one_head": Text(
        "all heads share one softmax: each head needs its own weights",
        "所有的头共用了一个 softmax：每个头应有自己的注意力权重",
    ),
    "not_halved": Text("the squared distance is not divided by 2", "距离的平方没有除以 2"),
    "not_squared": Text("the distance is not squared", "距离没有平方"),
    "multiplied": Text(
        "the distance is multiplied by the bandwidth, not divided by it",
        "距离乘以了带宽，应除以带宽",
    ),
    "raw": Text(
        "the weight itself is used as the bandwidth, without the softplus",
        "直接把权重当作带宽，没有用 softplus",
    ),
    "no_tanh": Text("there is no tanh", "没有 tanh"),
    "product": Text(
        "projected query and key are multiplied, not added", "投影后的查询与键相乘了，应相加"
    ),
    "tanh_of_score": Text(
        "the tanh is applied to the score, not to the sum before it",
        "tanh 用在了评分上，应用在求评分之前的和上",
    ),
    "from_one": Text("the positions begin with 1, not with 0", "位置从 1 开始，应从 0 开始"),
    "halves": Text(
        "all sines come before all cosines; they should alternate",
        "先是所有正弦，后是所有余弦；两者应交替",
    ),
    "cosine_first": Text("sine and cosine are exchanged", "正弦和余弦互换了"),
    "exponent": Text("the exponent should be 2j / D, not j / D", "指数应是 2j / D，不是 j / D"),
    "not_added": Text(
        "it returns the encoding alone, without the inputs", "它只返回编码，没有加上输入"
    ),
    "scaled": Text("the inputs are multiplied by a factor", "输入被乘上了一个倍数"),
    "no_residual": Text(
        "the residual is left out: add the input of the sublayer to its output",
        "漏了残差连接：子层的输出要加上它的输入",
    ),
    "over_tokens": Text(
        "the norm runs over the tokens, not over the features of each token",
        "规范化沿着词元计算，应对每个词元的各特征计算",
    ),
    "over_all": Text(
        "the norm runs over tokens and features together, not over the features of each token",
        "规范化对词元和特征一起计算，应对每个词元的各特征计算",
    ),
    "norm_first": Text(
        "the norm comes before the sum: add first, then normalize the sum",
        "先规范化后相加了：应先相加，再对和做规范化",
    ),
    "other_epsilon": Text(
        "epsilon is Keras's default of 1e-3, not the argument or the stated value",
        "epsilon 用的是 Keras 的默认值 1e-3，不是所要求的值",
    ),
    "no_gamma": Text("gamma and beta are not applied", "没有用上 gamma 和 beta"),
    "no_activation": Text(
        "the feed-forward network has no activation between its two maps",
        "前馈网络的两个线性变换之间没有激活函数",
    ),
    "look_ahead": Text(
        "a position sees those after it: the self-attention needs a causal mask",
        "位置看到了它之后的内容：自注意力需要因果掩码",
    ),
    "target_unmasked": Text(
        "hidden tokens of the inputs still have weights: `inputs_mask` is not used",
        "inputs 中被掩蔽的词元仍有权重：没有使用 `inputs_mask`",
    ),
    "memory_unmasked": Text(
        "hidden tokens of the memory still have weights: `memory_mask` is not used",
        "memory 中被掩蔽的词元仍有权重：没有使用 `memory_mask`",
    ),
    "causal_memory": Text(
        "the attention over the memory is causal: every position may see all of the memory",
        "对 memory 的注意力用了因果掩码：每个位置都可以看整个 memory",
    ),
    "no_memory": Text(
        "the second attention is over the target, not over the memory",
        "第二个注意力看的是目标序列，应看 memory",
    ),
}


class Fault(NamedTuple):
    """A key of the messages with the values for its text."""

    key: str
    facts: dict[str, Any]

    def sentence(self, name: str, language: str, case: tuple[str, int, int] | None) -> str:
        """What is wrong with the answer to an exercise, in a language.

        `case` has the inputs in words, their seed and their number, where the fault is of inputs.
        """
        which = self.facts.get("which")
        which = MESSAGES["which"].of(language).format(**which) if which else ""
        what = MESSAGES[self.key].of(language).format(**{**self.facts, "which": which})
        if case is None:
            return _NOT_RIGHT.of(language).format(name=name, what=what)
        inputs, seed, number = case
        what = _WHERE.of(language).format(inputs=inputs, what=what)
        call = f"exercises.get({name!r}).cases({seed})[{number}]"
        return _NOT_RIGHT.of(language).format(name=name, what=what) + _INPUTS.of(language) + call
