// The page's words, in both languages. A function fills in values.

const TEXTS = {
  en: {
    name: "English",
    title: "A translator at work",
    about: {
      transformer: ({ numLayers, numHeads, width, count }) => `A Transformer, ${count} parameters, \
computed in this page: ${numLayers} ${numLayers === 1 ? "layer" : "layers"} in the encoder and in \
the decoder, ${numHeads} ${numHeads === 1 ? "head" : "heads"}, ${width} features per token.`,
      recurrent: ({ width, units, count }) => `A recurrent model with Bahdanau's attention, \
${count} parameters, computed in this page: ${width} features per token, ${units} per state.`,
    },
    sentence: "Sentence",
    translate: "Translate",
    known: (count) => `The ${count} words that the model knows`,
    tokens: "The encoder's input",
    tokensHelp: "Choose a token to hide it from the attention, and again to show it. The last one marks \
the end.",
    unknown: (words) => `Not in the vocabulary, and read as <unk>: ${words.map((word) => (
      `“${word}”`)).join(", ")}.`,
    tidy: (sentence) => `Read “${sentence}” instead`,
    tooLong: (most) => `The model reads at most ${most} tokens. The sentence is longer.`,
    empty: "Type a sentence, or choose an example.",
    translation: "The translation, token by token",
    beginHelp: "Nothing is written yet. Play, or choose the next token.",
    writtenHelp: "Choose a token to go back to it, and the first for the beginning.",
    start: "To the start", back: "A step back", next: "A step", end: "To the end",
    play: "Play", pause: "Pause",
    keys: "Keyboard: space plays and pauses, ← → step.",
    search: "Search", greedy: "greedy", sample: "sampling", beam: "5 beams",
    temperature: "Temperature",
    nextWord: "The next token",
    nextHelp: "The model's candidates. Choose one to go on from it.",
    nextOfBeams: "The model's candidates. Choose one to leave the beams, and to go on from it.",
    ended: "The translation has ended. These are the candidates of its last step: choose one to \
go on from it.",
    was: (share) => `was ${share}`,
    changes: "Effect of changes",
    before: "Before:", after: "Now:", undo: "Undo all changes",
    beams: "Beams",
    beamsHelp: "Each column is a step with the kept hypotheses, the best first, and their scores: \
the mean log-probability of a token. Choose a box to see that hypothesis. Orange: the best.",
    beginning: "begin",
    attention: "Attention",
    view: "Where", encoder: "in the encoder", decoder: "in the decoder",
    cross: "from decoder to encoder",
    layer: "Layer", head: "Head", mean: "mean",
    encoderHelp: "Each source token attends to all source tokens.",
    decoderHelp: "The step that writes a token attends to the tokens written before it. “?” is the \
current step, which writes the next token.",
    crossHelp: "The step that writes a token attends to the source tokens. “?” is the current \
step, which writes the next token.",
    queries: "Queries: choose one, to see what it attends to",
    keysHelp: "Keys: the stronger the shade, the greater the weight, which is the share that the \
query takes of this token. The weights sum to 100%.",
    allHeads: "All heads",
    headsHelp: "Rows are queries, the chosen one in full color; columns are keys. Choose a head to \
see it under Attention; switch it off to see what the translation needs it for.",
    oneHead: "All weights",
    oneHeadHelp: "Rows are queries, the chosen one in full color; columns are keys. Switch the \
attention off to see what the translation needs it for.",
    same: "With the changes, the translation is the same.",
    other: (sentence) => `With the changes, the translation is: ${sentence}`,
    changed: (names) => `Off or hidden: ${names.join("; ")}`,
    layerName: (layer) => `Layer ${layer}`,
    headName: (layer, head) => `Layer ${layer}, head ${head}`,
    headOf: (view, name) => `${view}, ${name.toLowerCase()}`,
    on: "on", switchHead: (name) => `${name} is on`,
    walk: "One number, step by step",
    walkHelp: {
      transformer: ({ query, head, size, place }) => `${head}: feature ${place} of the output for \
the query “${query}”. A query and a key have ${size} features each; their dot product is a score. \
Scores are divided by √${size}, hidden keys get −∞, and the softmax turns scores into weights that \
sum to 1. The output is the weighted mean of the values.`,
      recurrent: ({ query, size, place }) => `Feature ${place} of the context for the step that \
writes “${query}”. The decoder's state and each vector of the encoder are projected to ${size} \
numbers, query and key; v is learned. Hidden keys get −∞, and the softmax turns scores into weights \
that sum to 1. The context is the weighted mean of the encoder's vectors.`,
    },
    feature: "Feature of value and output",
    columns: (isScaled) => ["key", ...(isScaled ? ["query · key", "÷ √size"] : [
      "v · tanh(query + key)"]), "visible?", "e^(score − max)", "weight", "value",
    "weight · value"],
    visible: "yes", hidden: "no: −∞",
    total: "sum",
    sum: {
      transformer: ({ key, product, size, score, most, power, total, weight }) => `For “${key}”: \
${product} / √${size} = ${score}; e^(${score} − ${most}) = ${power}; ${power} / ${total} = \
${weight}.`,
      recurrent: ({ key, score, most, power, total, weight }) => `For “${key}”: e^(${score} − \
${most}) = ${power}; ${power} / ${total} = ${weight}.`,
    },
    headOff: "This head is off: its output counts as 0.",
    ofMean: "The mean has no such steps; these are one head's. Choose a head.",
  },
  zh: {
    name: "中文",
    title: "看翻译模型怎样工作",
    about: {
      transformer: ({ numLayers, numHeads, width, count }) => `一个有 ${count} 个数的 Transformer，\
全部在本页中计算：编码器和解码器各 ${numLayers} 层，${numHeads} 个头，每个词元 ${width} 个特征。`,
      recurrent: ({ width, units, count }) => `一个带 Bahdanau 注意力的循环模型，有 ${count} 个数，\
全部在本页中计算：每个词元 ${width} 个特征，每个状态 ${units} 个。`,
    },
    sentence: "句子",
    translate: "翻译",
    known: (count) => `模型认识的 ${count} 个词`,
    tokens: "编码器读到的词元",
    tokensHelp: "点选一个词元，使注意力看不到它；再点一次恢复。最后一个表示句子结束。",
    unknown: (words) => `词表中没有、读作 <unk> 的词：${words.map((word) => (
      `“${word}”`)).join("、")}。`,
    tidy: (sentence) => `改读“${sentence}”`,
    tooLong: (most) => `模型最多读 ${most} 个词元，这个句子太长。`,
    empty: "请输入一个句子，或选择一个例句。",
    translation: "一步一步看译文",
    beginHelp: "还没有译文。点“播放”，或点选下一个词元。",
    writtenHelp: "点选一个词元，回到那一步；第一个表示开头。",
    start: "回到开头", back: "退一步", next: "进一步", end: "直到结尾",
    play: "播放", pause: "暂停",
    keys: "键盘：空格播放或暂停，← → 后退或前进。",
    search: "搜索", greedy: "贪心", sample: "随机", beam: "束宽 5",
    temperature: "温度",
    nextWord: "下一个词元",
    nextHelp: "模型的候选词元。点选一个，从它继续。",
    nextOfBeams: "模型的候选词元。点选一个，就离开束搜索，从它继续。",
    ended: "译文已结束。这些是最后一步的候选词元：点选一个，从它继续。",
    was: (share) => `原为 ${share}`,
    changes: "改动的效果",
    before: "完整的模型：", after: "现在：", undo: "撤销所有改动",
    beams: "束搜索",
    beamsHelp: "每一列是一步，列出保留的候选译文，最好的在上；数是得分，即每个词元对数概率的平均。\
点选一个方框查看该译文。橙色：最好的译文。",
    beginning: "开始",
    attention: "注意力",
    view: "哪一种", encoder: "编码器内", decoder: "解码器内", cross: "解码器到编码器",
    layer: "层", head: "头", mean: "平均",
    encoderHelp: "每个源词元从所有源词元汇聚信息。",
    decoderHelp: "写出一个词元的那一步，从之前写出的词元汇聚信息。“?” 是当前这一步，将写出下一个词元。",
    crossHelp: "写出一个词元的那一步，从源词元汇聚信息。“?” 是当前这一步，将写出下一个词元。",
    queries: "查询：点选一个，看它汇聚了什么",
    keysHelp: "键：颜色越浓，权重越大，即查询从这个词元取得的份额越大。权重之和为 100%。",
    allHeads: "所有的头",
    headsHelp: "行是查询，选中的一行颜色最足；列是键。点选一个头，在“注意力”一栏查看；关掉它，\
看译文少了什么。",
    oneHead: "所有权重",
    oneHeadHelp: "行是查询，选中的一行颜色最足；列是键。关掉注意力，看译文少了什么。",
    same: "改动之后，译文不变。",
    other: (sentence) => `改动之后，译文是：${sentence}`,
    changed: (names) => `已关闭或遮住：${names.join("；")}`,
    layerName: (layer) => `第 ${layer} 层`,
    headName: (layer, head) => `第 ${layer} 层，第 ${head} 头`,
    headOf: (view, name) => `${view}，${name}`,
    on: "开启", switchHead: (name) => `${name}开启`,
    walk: "一步一步算一个数",
    walkHelp: {
      transformer: ({ query, head, size, place }) => `${head}：查询“${query}”的输出的第 ${place} 个\
数。查询和键各有 ${size} 个数，它们的点积是评分。评分除以 √${size}，被遮住的键得到 −∞，softmax 把评分\
变成和为 1 的权重。输出是值的加权平均。`,
      recurrent: ({ query, size, place }) => `写出“${query}”这一步的上下文的第 ${place} 个数。解码器的\
状态和编码器的每个向量各投影成 ${size} 个数，即查询和键；v 是学到的。被遮住的键得到 −∞，softmax 把评分\
变成和为 1 的权重。上下文是编码器各向量的加权平均。`,
    },
    feature: "值和输出的第几个数",
    columns: (isScaled) => ["键", ...(isScaled ? ["查询 · 键", "÷ √维数"] : [
      "v · tanh(查询 + 键)"]), "可见？", "e^(评分 − 最大)", "权重", "值", "权重 · 值"],
    visible: "是", hidden: "否：−∞",
    total: "合计",
    sum: {
      transformer: ({ key, product, size, score, most, power, total, weight }) => `以“${key}”为例：\
${product} / √${size} = ${score}；e^(${score} − ${most}) = ${power}；${power} / ${total} = ${weight}。`,
      recurrent: ({ key, score, most, power, total, weight }) => `以“${key}”为例：e^(${score} − \
${most}) = ${power}；${power} / ${total} = ${weight}。`,
    },
    headOff: "这个头已关闭：它的输出算作 0。",
    ofMean: "各头的平均没有这样的步骤；点选一个头，可以跟踪另一个头。",
  },
};
